"""A simulation, or a search for capacity, as a Markdown report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench_kit.metrics.serving_rows import AXES, look_up, varied
from specbench_kit.reports.render_markdown import blocks as markdown_of
from specbench_kit.reports.serving import wording
from specbench_kit.reports.serving.setting import deployments, series, setting
from specbench_kit.reports.serving.wording import cell
from specbench_kit.reports.writing.cautions import setting_cautions
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share, significant, times
from specbench_kit.reports.writing.markup import code, document, folded, table, warning
from specbench_kit.reports.writing.provenance import provenance

Fields = Mapping[str, Any]

RESULTS = {
    "violations (95%)": ("violation_rate", share),
    "starved": ("starved_rate", share),
    "throughput": ("throughput", significant),
    "goodput": ("goodput", significant),
    "speed": ("speed.mean", significant),
    "TTFT": ("ttft_s.mean", seconds),
    "TPOT": ("tpot_s.mean", seconds),
    "acceptance length": ("acceptance_length", significant),
}
ROUNDS = {
    "missed deadlines": ("overall.deadline_miss_rate", share),
    "slow rounds": ("overall.slow_round_rate", share),
    "queue": ("overall.queue_s.mean", seconds),
    "queue p95": ("overall.queue_s.p95", seconds),
    "verify": ("overall.verify_s.mean", seconds),
    "interference": ("overall.interference.mean", significant),
    "put down to the queue": ("violations.queue_dominant", count),
    "to the batch": ("violations.compute_dominant", count),
}
SERVER = {
    "busy": ("server.utilisation", share),
    "batch size": ("server.batch_size.mean", significant),
    "left waiting": ("server.left_waiting.mean", significant),
    "estimated / true time": ("server.estimate_over_true", significant),
    "declined to start": ("server.refusals", count),
    "idle while some waited": ("server.idle_while_waiting_s", seconds),
    "evictions": ("server.evictions", count),
    "peak KV tokens": ("server.peak_kv_tokens", count),
    "warm-up that was counted": ("steady.warm_up_left_s", seconds),
    "J / token, at full power while at work": ("cost.joules_per_token", significant),
    "tokens per $, devices while they draft": ("cost.tokens_per_price", count),
    "tokens per $, devices all the time": ("cost.tokens_per_rented_price", count),
}
MOST_ROWS = 8
"""Of a table that is not folded."""


def render(run: Fields, summary: Fields, figures: Sequence[str], links: Sequence[str]) -> str:
    """The report of what `run.json` and `summary.json` hold; `figures` are its pictures, `links` further files."""
    results = _capacity(summary) if run["command"] == "capacity" else _simulation(summary)
    sections = [
        _title(run, summary),
        *results,
        _published(run, summary),
        _assumed(run),
        _guards(summary),
        "\n\n".join(["## Figures", *figures]),
        _links(links),
        setting(run),
        series(run),
        *deployments(run),
        _definitions(run),
        markdown_of(provenance(run)),
    ]
    return document(sections)


def _title(run: Fields, summary: Fields) -> str:
    preset = run["preset"]
    names = ", ".join(code(one["label"]) for one in run["series"])
    what = "Capacity of" if run["command"] == "capacity" else "Simulation of"
    title = f"# {preset['name']}: {preset['summary']}" if preset else f"# {what} {names}"
    source = [f"After {preset['source']}. {preset['reading']}".strip()] if preset else []
    lines = [f"- {line}" for line in wording.headlines(run, summary)]
    cautions = [*setting_cautions(dict(run)), *wording.cautions(summary)]
    return "\n\n".join([title, *source, "\n".join(lines), warning(cautions)])


def _simulation(summary: Fields) -> Iterator[str]:
    rows = summary["rows"]
    yield "## Results (modelled)\n\n" + _table(rows, RESULTS, "figures.overall.")
    yield _section("By class", _by_class(rows), len(rows))
    yield _section("Rounds", _table(rows, ROUNDS, "figures."), len(rows))
    yield _section("Server", _table(rows, SERVER, "figures."), len(rows))
    yield _against(summary)


def _section(title: str, body: str, rows: int) -> str:
    """A part of the report, to open on a click where it is long."""
    if not body:
        return ""
    return f"## {title} (modelled)\n\n" + (folded("Table", body) if rows > MOST_ROWS else body)


def _axes(rows: Sequence[Fields]) -> list[str]:
    changing = varied(rows)
    return [axis for axis in AXES if axis in changing or (axis == "devices" and axis in rows[0])]


def _table(rows: Sequence[Fields], columns: Mapping[str, Any], prefix: str) -> str:
    axes = _axes(rows)
    header = ["series", *axes, *columns]
    body = [
        [code(row["series"]), *(_value(row[axis]) for axis in axes)]
        + [cell(look_up(row, prefix + path), form) for path, form in columns.values()]
        for row in rows
    ]
    return table(header, body)


def _value(value: Any) -> str:
    return ABSENT if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _by_class(rows: Sequence[Fields]) -> str:
    axes = _axes(rows)
    body = [
        [code(row["series"]), *(_value(row[axis]) for axis in axes), name, significant(group["promised_speed"]["mean"])]
        + [cell(look_up(group, path), form) for path, form in RESULTS.values()]
        for row in rows
        for name, group in _groups(row)
    ]
    if not body:
        return ""
    return table(["series", *axes, "class", "SLO (tokens/s)", *RESULTS], body)


def _groups(row: Fields) -> list[tuple[str, Fields]]:
    classes = row["figures"]["classes"]
    return list(classes.items()) if len(classes) > 1 else []


def _against(summary: Fields) -> str:
    pairs = summary["against_first"]
    if not pairs:
        return ""
    axes = _axes(summary["rows"])
    body = [
        [
            code(one["series"]),
            *(_value(one[axis]) for axis in axes),
            cell(one["throughput_ratio"], times),
            cell(one["violation_difference"], share),
        ]
        for one in pairs
    ]
    title = f"## Against {code(pairs[0]['against'])}, seed by seed"
    return f"{title}\n\n" + table(["series", *axes, "throughput (95%)", "violation rate, difference (95%)"], body)


def _capacity(summary: Fields) -> Iterator[str]:
    rows, rule = summary["rows"], summary["rule"]
    axes = ["slo", *(axis for axis in _axes(rows) if axis != "slo")]
    body = [[code(row["series"]), *(_value(row[axis]) for axis in axes), *_found(row)] for row in rows]
    header = ["series", *axes, "capacity (95%)", "by seed", "settled early or clearly", "numbers tried"]
    text = (
        f"The most devices with a violation rate of {share(rule['epsilon'])} at most, by doubling and halving, each "
        "seed by itself. A run is stopped at an eighth, a quarter or half of its time if the 95% interval of its rate "
        "lies on one side of epsilon by then; where it never does, the rate over the whole run decides."
    )
    yield "## Capacity (modelled)\n\n" + table(header, body) + f"\n\n{text}"


def _found(row: Fields) -> list[str]:
    if row.get("refused"):
        return ["0", ABSENT, ABSENT, ABSENT]
    by_seed = ", ".join(f"{one['load']:g}" for one in row["seeds"])
    tried = sum(len(one["trials"]) for one in row["seeds"])
    return [wording.capacity(row), by_seed, share(row["settled"]), str(tried)]


def _published(run: Fields, summary: Fields) -> str:
    pairs = summary.get("published")
    if not pairs:
        return ""
    against = run["preset"]["against"]
    header = [*wording.PUBLISHED_COLUMNS, *(wording.ratio_columns(against) if against else [])]
    body = [wording.published_cells(pair)[: len(header)] for pair in pairs]
    text = (
        "The paper leaves inputs open, which are listed below, so that the numbers themselves cannot be expected to "
        "agree; a ratio between systems depends less on them. The ratio of ratios is 1 where the simulation shows "
        f"the paper's advantage, above 1 where it shows a larger one. {code(wording.NOT_AT_HAND)}: the kit does not "
        "know the paper's number."
    )
    return "## Published and simulated\n\n" + table(header, body) + f"\n\n{text}"


def _assumed(run: Fields) -> str:
    if not run["preset"]:
        return ""
    rows = [(one["name"], one["value"], one["effect"]) for one in run["preset"]["assumed"]]
    return "## Assumed inputs\n\n" + table(["input", "assumed", "where another value would lead"], rows)


def _guards(summary: Fields) -> str:
    lines = [f"- {wording.guard_sentence(found)}" for found in summary["guards"]]
    text = (
        "The smallest guard time of those tried with which a wrong estimator does as well as the right one with its "
        "smallest guard time, as far as seeds can tell."
    )
    return "\n\n".join(["## Guard time against a wrong estimator", "\n".join(lines), text]) if lines else ""


def _links(links: Sequence[str]) -> str:
    lines = [f"- [{name}]({name})" for name in links]
    text = "Timelines open in Perfetto (ui.perfetto.dev); events are Parquet tables of rounds, responses and batches."
    return "\n\n".join(["## Events", "\n".join(lines), text]) if lines else ""


def _definitions(run: Fields) -> str:
    speed = run["config"]["objective"] == "speed"
    whole, later = "its speed, from when it was asked for to its last token,", "its time per token after the first"
    return (
        "## Reading the numbers\n\n"
        f"A response breaks its SLO when {whole if speed else later} falls short of its class; responses that are due "
        "before the end count once, finished or not; the starved rate counts one that is overdue k times over k times. "
        "Goodput counts tokens of finished responses that keep their SLO. A "
        "round misses its deadline when its verification ends after arrival + expected tokens / promised speed - "
        "drafting - network. Interference is the time of a round's batch over what the round would take alone. "
        "Intervals are 95% intervals of Student's t over seeds."
    )
