"""One run as a Markdown report that can be pasted into a pull request."""

from collections.abc import Callable, Sequence
from typing import Any

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.attainment import PROMISE, SCALES
from specbench_kit.metrics.setting import method_label, sampling_sentence
from specbench_kit.metrics.vocabulary import (
    BASELINE,
    DISTRIBUTIONS,
    LISTS,
    METRICS,
    OVERLAP,
)
from specbench_kit.reports.run.answers import answers_section
from specbench_kit.reports.run.lossless import capped_table, lossless_section
from specbench_kit.reports.run.pipeline import pipeline_section
from specbench_kit.reports.writing import colocation, deployment, machine, methods, wording
from specbench_kit.reports.writing.cautions import not_read, result_cautions, resumption_cautions, setting_cautions
from specbench_kit.reports.writing.formatting import count, seconds, share, shorten_head, shorten_tail
from specbench_kit.reports.writing.markup import code, document, fence, folded, table, warning
from specbench_kit.reports.writing.provenance import provenance
from specbench_kit.reports.writing.values import COLUMNS, value_with_interval

Fields = dict[str, Any]
Decode = Callable[[list[int]], str]

CATEGORY_COLUMNS = ("speedup (95%)", "acceptance length", "acceptance", "draft efficiency", "TPOT mean")
EXPORTS = {
    "plots/timeline.png": "![Timeline of the first rounds of one request](plots/timeline.png)",
    "timeline.json": "Timeline: [`timeline.json`](timeline.json) opens in [Perfetto](https://ui.perfetto.dev) and in "
    "Chrome (`chrome://tracing`); the picture is also there as [SVG](plots/timeline.svg).",
    "tokens/index.html": "Tokens: [a page per request](tokens/index.html) shows where each token came from.",
}
"""What the report says of each file that may lie beside it."""
PROMPT_CHARACTERS = 300
OUTPUT_CHARACTERS = 600


def render(
    run: Fields,
    summary: Fields,
    records: Sequence[RequestRecord],
    decode: Decode | None = None,
    exports: Sequence[str] = (),
    further: Sequence[str] = (),
    problems: Sequence[str] = (),
) -> str:
    """The report: `run` and `summary` are run.json and summary.json; `decode` turns prompt ids into text.

    `exports` are the files beside the report that it links to, `further` sections go before the example, and
    `problems` are lines on what could not be read.
    """
    sections = [
        _title(run, summary, problems),
        _setting(run),
        methods.section([run]),
        deployment.section(run, summary.get("hidden_states")),
        lossless_section(run, summary),
        _results(run, summary),
        answers_section({_label(run, summary): summary}),
        _latency(run, summary),
        colocation.section({_label(run, summary): summary["overall"]}, run.get("deployment")),
        _categories(summary),
        _positions(summary["overall"]),
        _phases(run, summary),
        pipeline_section(run, summary),
        _overlap(run, summary),
        _exports(exports),
        *further,
        _failures(records),
        _example(records, decode),
        _all_numbers(run, summary),
        definitions(),
        provenance(run),
    ]
    return document(sections)


def _title(run: Fields, summary: Fields, problems: Sequence[str]) -> str:
    dataset = (run.get("dataset") or {}).get("name", "unnamed dataset")
    first = warning(machine.warnings(run))
    parts = [
        f"# {code(_label(run, summary))} on {dataset}",
        *filter(None, [first]),
        f"**{wording.headline(run, summary)}**",
    ]
    cautions = [*result_cautions(summary), *resumption_cautions(run), *setting_cautions(run)]
    cautions += colocation.cautions(code(_label(run, summary)), summary["overall"])
    cautions += map(not_read, problems)
    return "\n\n".join([*parts, *filter(None, [warning(cautions)])])


def _label(run: Fields, summary: Fields) -> str:
    return method_label({"method": summary["method"], **run})


def _setting(run: Fields) -> str:
    return "## What was run\n\n" + table(["", ""], setting(run))


def setting(run: Fields) -> list[tuple[str, str]]:
    """What was run on what, as rows of a table."""
    config, models = run.get("config") or {}, run.get("models") or {}
    limits = f"{config.get('max_new_tokens')} new tokens per request, {wording.batch_sentence(config)}"
    again = f", every request asked {config['repeats']} times" if (config.get("repeats") or 1) > 1 else ""
    return [
        ("dataset", wording.dataset_sentence(run.get("dataset") or {})),
        *((f"{role} model", wording.model_sentence(model)) for role, model in models.items() if model),
        *([("trace", wording.trace_sentence(run["trace"]))] if run.get("trace") else []),
        ("sampling", sampling_sentence(config)),
        ("limits", limits + again),
        ("time", wording.time_sentence(run)),
        *wording.warm_up([run]),
        ("device", ", ".join(config[key] for key in ("device", "dtype") if config.get(key))),
        ("executors", ", ".join(f"{role}: {name}" for role, name in (config.get("executors") or {}).items())),
        ("hardware", wording.hardware_sentence(run.get("hardware") or {})),
        *((f"left out: {code(name)}", reason) for name, reason in (run.get("left_out") or {}).items()),
    ]


def _sides(run: Fields, summary: Fields) -> dict[str, Fields]:
    """Overall metrics by row label: the method's, then the baseline's where there is one."""
    sides = {code(_label(run, summary)): summary["overall"]}
    if summary.get("baseline"):
        sides[BASELINE] = summary["baseline"]["overall"]
    return sides


def _results(run: Fields, summary: Fields) -> str:
    rows = [(label, *(show(overall) for show in COLUMNS.values())) for label, overall in _sides(run, summary).items()]
    note = wording.speedup_note(run, summary)
    return "## Results\n\n" + table(["method", *COLUMNS], rows) + (f"\n\n{note}" if note else "")


def _latency(run: Fields, summary: Fields) -> str:
    statistics = ("mean", "p50", "p95", "p99")
    rows = [
        (name.upper(), label, *(seconds(overall[name][s]) for s in statistics))
        for name in DISTRIBUTIONS
        for label, overall in _sides(run, summary).items()
    ]
    parts = [f"## Latency ({run.get('time_kind')})", table(["", "method", *statistics], rows)]
    return "\n\n".join([*parts, *_attainment(summary["overall"])])


def _attainment(overall: Fields) -> list[str]:
    """One sentence, where plain decoding was run beside."""
    shares = overall.get("slo_attainment")
    kept = ", ".join(f"{share(one)} at {scale:g}x" for one, scale in zip(shares or (), SCALES, strict=bool(shares)))
    what = f"Requests within a time per token of the {PROMISE}th percentile of plain decoding"
    return [f"{what}, times a scale: {kept}."] if shares else []


def _categories(summary: Fields) -> str:
    rows = [
        (name, count(part["finished"]), count(part["tokens"]), *(COLUMNS[column](part) for column in CATEGORY_COLUMNS))
        for name, part in summary["categories"].items()
    ]
    return "## By category\n\n" + table(["category", "requests", "tokens", *CATEGORY_COLUMNS], rows) if rows else ""


def _positions(overall: Fields) -> str:
    rates, conditional = overall["acceptance_at"], overall["acceptance_at_conditional"]
    if not rates:
        return ""
    reached = sum(1 for rate in rates if rate)
    rows = [(i + 1, share(rates[i]), share(conditional[i])) for i in range(reached)]
    rates_table = table(["draft position", "accepted, of all rounds", "accepted, given all before it were"], rows)
    rest = f"No round accepted more than {reached} of up to {len(rates)} draft positions."
    parts = ["## Acceptance by position", *([rates_table] if rows else []), *([rest] if reached < len(rates) else [])]
    return "\n\n".join(parts)


def _phases(run: Fields, summary: Fields) -> str:
    sides = _sides(run, summary)
    names = [p for p in summary["overall"]["phase_seconds"] if any(o["phase_seconds"][p] for o in sides.values())]
    rows = [(name, *(_phase_cell(overall, name) for overall in sides.values())) for name in names]
    return f"## Where the time goes ({run.get('time_kind')})\n\n" + table(["phase", *sides], rows) if rows else ""


def _phase_cell(overall: Fields, phase: str) -> str:
    return f"{seconds(overall['phase_seconds'][phase])} ({share(overall['phase_share'][phase])})"


def _overlap(run: Fields, summary: Fields) -> str:
    if not summary.get("overlaps"):
        return ""
    overall = summary["overall"]
    shown = [metric for metric in METRICS if metric.name in OVERLAP and metric.name in overall]
    rows = [(code(metric.name), value_with_interval(metric, overall), metric.definition) for metric in shown]
    parts = [table(["", "", "meaning"], rows) if rows else "", wording.overlap_note(run)]
    return "\n\n".join(["## Drafting while the target verifies", *filter(None, parts)])


def _exports(exports: Sequence[str]) -> str:
    parts = [text for name, text in EXPORTS.items() if name in exports]
    return "\n\n".join(["## Timeline and tokens", *parts]) if parts else ""


def _failures(records: Sequence[RequestRecord]) -> str:
    rows = [(r.request_id, r.error or "no message") for r in records if r.finish_reason == "error"]
    return "## Failed requests\n\n" + capped_table(["request", "error"], rows) if rows else ""


def _example(records: Sequence[RequestRecord], decode: Decode | None) -> str:
    record = next((r for r in records if r.finish_reason != "error"), None)
    if record is None:
        return ""
    parts = [f"## Example: request {code(record.request_id)}"]
    if decode is not None:
        parts += ["End of the prompt:", fence(shorten_head(decode(record.prompt_ids), PROMPT_CHARACTERS))]
    ending = f"Output ({len(record.output_ids)} tokens, ended by {record.finish_reason}):"
    return "\n\n".join([*parts, ending, fence(shorten_tail(record.text, OUTPUT_CHARACTERS))])


def _all_numbers(run: Fields, summary: Fields) -> str:
    sides = _sides(run, summary)
    rows = [
        (code(m.name), *(value_with_interval(m, overall) for overall in sides.values()))
        for m in METRICS
        if m.name in summary["overall"]
    ]
    return folded("All numbers, with 95% intervals", table(["metric", *sides], rows))


def definitions() -> str:
    """What every metric means, to open on a click."""
    meanings = {m.name: m.definition for m in METRICS} | DISTRIBUTIONS | LISTS
    return folded("Definitions", "\n".join(f"- {code(name)}: {text}" for name, text in meanings.items()))
