"""The report on one run."""

from collections.abc import Callable, Mapping, Sequence

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.attainment import PROMISE, SCALES
from specbench_kit.metrics.setting import method_label, sampling_sentence
from specbench_kit.metrics.vocabulary import BASELINE, DISTRIBUTIONS, LISTS, METRICS, OVERLAP
from specbench_kit.reports import headlines
from specbench_kit.reports.columns import COLUMNS, all_numbers, value_with_interval
from specbench_kit.reports.document import (
    Block,
    Blocks,
    BulletList,
    CodeBlock,
    Column,
    Document,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.run.answers import answers_section
from specbench_kit.reports.run.lossless import capped_table, lossless_section
from specbench_kit.reports.run.pipeline import pipeline_section
from specbench_kit.reports.stored import Row, RunFile, Summary
from specbench_kit.reports.writing import colocation, deployment, machine, methods, wording
from specbench_kit.reports.writing.cautions import not_read, result_cautions, resumption_cautions, setting_cautions
from specbench_kit.reports.writing.formatting import seconds, share, shorten_head, shorten_tail
from specbench_kit.reports.writing.provenance import provenance

Decode = Callable[[list[int]], str]

RESULTS = ("speedup (95%)", "throughput", "acceptance length", "acceptance", "draft efficiency", "TTFT", "TPOT", "WDT")
BY_CATEGORY = ("speedup (95%)", "acceptance length", "acceptance", "draft efficiency", "TPOT")
EXPORTS: Mapping[str, Block] = {
    "plots/timeline.png": Figure("Timeline of the first rounds of one request", "plots/timeline.png"),
    "timeline.json": Paragraph(
        "Timeline: [`timeline.json`](timeline.json) opens in [Perfetto](https://ui.perfetto.dev) and in Chrome "
        "(`chrome://tracing`); the picture is also available as [SVG](plots/timeline.svg)."
    ),
    "tokens/index.html": Paragraph("Tokens: [a page per request](tokens/index.html) shows the origin of each token."),
}
"""What a report says of each file that its folder may hold."""
PROMPT_CHARACTERS = 300
OUTPUT_CHARACTERS = 600


def build(
    run: RunFile,
    summary: Summary,
    records: Sequence[RequestRecord],
    decode: Decode | None = None,
    exports: Sequence[str] = (),
    further: Blocks = (),
    problems: Sequence[str] = (),
) -> Document:
    """Return the report; `run` and `summary` are run.json and summary.json, `decode` turns prompt ids into text.

    `exports` are the files in the run's folder that it links to, `further` blocks precede the example, and `problems`
    are lines on what could not be read.
    """
    name, overall = method_label({"method": summary["method"], **run}), summary["overall"]
    sides: dict[str, Row] = {name: overall}
    if summary.get("baseline"):
        sides[BASELINE] = summary["baseline"]["overall"]
    cautions = [*result_cautions(summary), *resumption_cautions(run), *setting_cautions(run)]
    cautions += [*colocation.cautions(code(name), overall), *map(not_read, problems)]
    return Document.of(
        f"{code(name)} on {(run.get('dataset') or {}).get('name', 'unnamed dataset')}",
        caution(machine.warnings(run), severe=True),
        [Paragraph(f"**{headlines.of_run(run, summary)}**"), *caution(cautions)],
        [Heading("What was run"), facts(setting(run))],
        methods.section([run]),
        deployment.section(run, summary.get("hidden_states")),
        lossless_section(run, summary),
        [Heading("Results"), _side_by_side(sides, RESULTS), *paragraphs(wording.speedup_note(run, summary))],
        answers_section({name: summary}),
        _latency(run, sides),
        colocation.section({name: overall}, run.get("deployment")),
        _categories(summary),
        _positions(overall),
        _phases(run, sides),
        pipeline_section(run, summary),
        _overlap(run, summary),
        _exports(exports),
        further,
        _failures(records),
        _example(records, decode),
        [all_numbers(sides), definitions()],
        provenance(run),
    )


def setting(run: RunFile) -> list[tuple[str, str]]:
    """Return what was run on what, as rows of a table of facts."""
    config, models = run.get("config") or {}, run.get("models") or {}
    limits = f"{config.get('max_new_tokens')} new tokens per request, {wording.batch_sentence(config)}"
    repeats = f", every request asked {config['repeats']} times" if (config.get("repeats") or 1) > 1 else ""
    return [
        ("dataset", wording.dataset_sentence(run.get("dataset") or {})),
        *((f"{role} model", wording.model_sentence(model)) for role, model in models.items() if model),
        *([("trace", wording.trace_sentence(run["trace"]))] if run.get("trace") else []),
        ("sampling", sampling_sentence(config)),
        ("limits", limits + repeats),
        ("time", wording.time_sentence(run)),
        *wording.warm_up([run]),
        ("device", ", ".join(config[key] for key in ("device", "dtype") if config.get(key))),
        ("executors", ", ".join(f"{role}: {name}" for role, name in (config.get("executors") or {}).items())),
        ("hardware", wording.hardware_sentence(run.get("hardware") or {})),
        *((f"left out: {code(name)}", reason) for name, reason in (run.get("left_out") or {}).items()),
    ]


def _side_by_side(sides: Mapping[str, Row], titles: Sequence[str]) -> Table:
    columns = [COLUMNS[title] for title in titles]
    rows = [[_name(label), *(column.cell(row) for column in columns)] for label, row in sides.items()]
    return Table(("method", *columns), rows)


def _name(label: str) -> str:
    return label if label == BASELINE else code(label)


def _latency(run: RunFile, sides: Mapping[str, Row]) -> Blocks:
    statistics = ("mean", "p50", "p95", "p99")
    rows = [
        (name.upper(), _name(label), *(row[name][statistic] for statistic in statistics))
        for name in DISTRIBUTIONS
        for label, row in sides.items()
    ]
    columns: list[Column | str] = ["", "method", *(Column(statistic, "seconds") for statistic in statistics)]
    blocks: list[Block] = [Heading(f"Latency ({run.get('time_kind')})"), Table(columns, rows)]
    if shares := next(iter(sides.values())).get("slo_attainment"):
        text = ", ".join(f"{share(attained)} at {scale:g}x" for attained, scale in zip(shares, SCALES, strict=True))
        slo = f"SLO attainment, where the SLO is a scale times the {PROMISE}th percentile of plain decoding's TPOT"
        blocks.append(Paragraph(f"{slo}: {text}."))
    return blocks


def _categories(summary: Summary) -> Blocks:
    columns = [COLUMNS[title] for title in BY_CATEGORY]
    rows = [
        (name, part["finished"], part["tokens"], *(column.cell(part) for column in columns))
        for name, part in summary["categories"].items()
    ]
    header: list[Column | str] = ["category", Column("requests", "count"), Column("tokens", "count"), *columns]
    return [Heading("By category"), Table(header, rows)] if rows else []


def _positions(overall: Row) -> Blocks:
    rates, conditional = overall["acceptance_at"], overall["acceptance_at_conditional"]
    if not rates:
        return []
    blocks: list[Block] = [Heading("Acceptance by position")]
    reached = sum(1 for rate in rates if rate)
    if reached:
        titles = ("accepted, of all rounds", "accepted, given that all earlier positions were")
        columns: list[Column | str] = ["draft position", *(Column(title, "share") for title in titles)]
        blocks.append(Table(columns, [(str(i + 1), rates[i], conditional[i]) for i in range(reached)]))
    if reached < len(rates):
        blocks.append(Paragraph(f"No round accepted more than {reached} of up to {len(rates)} draft positions."))
    return blocks


def _phases(run: RunFile, sides: Mapping[str, Row]) -> Blocks:
    rows = []
    for phase in next(iter(sides.values()))["phase_seconds"]:
        busy = [(row["phase_seconds"][phase], row["phase_share"][phase]) for row in sides.values()]
        if any(busy_s for busy_s, _ in busy):
            rows.append((phase, *(f"{seconds(busy_s)} ({share(part)})" for busy_s, part in busy)))
    table = Table(("phase", *map(_name, sides)), rows)
    return [Heading(f"Where the time goes ({run.get('time_kind')})"), table] if rows else []


def _overlap(run: RunFile, summary: Summary) -> Blocks:
    if not summary.get("overlaps"):
        return []
    overall = summary["overall"]
    rows = [
        (code(metric.name), value_with_interval(metric.name, metric.unit, overall), metric.definition)
        for metric in METRICS
        if metric.name in OVERLAP and metric.name in overall
    ]
    tables = [Table(("", "", "meaning"), rows)] if rows else []
    return [Heading("Drafting while the target verifies"), *tables, *paragraphs(wording.overlap_note(run))]


def _exports(exports: Sequence[str]) -> Blocks:
    blocks = [block for name, block in EXPORTS.items() if name in exports]
    return [Heading("Timeline and tokens"), *blocks] if blocks else []


def _failures(records: Sequence[RequestRecord]) -> Blocks:
    rows = [(record.request_id, record.error or "no message") for record in records if record.finish_reason == "error"]
    return [Heading("Failed requests"), *capped_table(["request", "error"], rows)] if rows else []


def _example(records: Sequence[RequestRecord], decode: Decode | None) -> Blocks:
    record = next((record for record in records if record.finish_reason != "error"), None)
    if record is None:
        return []
    blocks: list[Block] = [Heading(f"Example: request {code(record.request_id)}")]
    if decode is not None:
        prompt = shorten_head(decode(record.prompt_ids), PROMPT_CHARACTERS)
        blocks += [Paragraph("End of the prompt:"), CodeBlock(prompt)]
    blocks.append(Paragraph(f"Output ({len(record.output_ids)} tokens, ended by {record.finish_reason}):"))
    return [*blocks, CodeBlock(shorten_tail(record.text, OUTPUT_CHARACTERS))]


def definitions() -> Folded:
    """Return the meaning of every metric, to open on a click."""
    meanings = {metric.name: metric.definition for metric in METRICS} | DISTRIBUTIONS | LISTS
    return Folded("Definitions", [BulletList([f"{code(name)}: {text}" for name, text in meanings.items()])])
