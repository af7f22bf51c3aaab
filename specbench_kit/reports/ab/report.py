"""The report of `skit ab` as a document: the result in one sentence and one picture, then the tables."""

from collections.abc import Sequence

from specbench_kit.core.plain_text import last_part
from specbench_kit.metrics.ab.summary import FIGURES, AbSummary, Divergence, LoadSummary, ServerFigures
from specbench_kit.metrics.setting import sampling_sentence
from specbench_kit.reports.ab import wording
from specbench_kit.reports.document import (
    Block,
    Blocks,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    facts,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.provenance import provenance
from specbench_kit.reports.stored import RunFile
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
PERCENTILES = ("p50", "p95", "p99")


def build(run: RunFile, summary: AbSummary, picture: Figure | None = None) -> Document:
    """Return the report."""
    first, second = summary.names
    opening: Blocks = [Paragraph(wording.headline(summary)), *([picture] if picture else [])]
    lines = [*machine.warnings(run), *setting_cautions(run), *wording.cautions(summary)]
    sections: Sequence[Blocks] = [
        opening,
        caution(lines),
        [Heading("Which one is faster"), verdicts(summary), Note(wording.verdict_note(summary))],
        [Heading("Throughput, speculation and outputs"), _load_table(summary)],
        [Heading("Latency"), _latency_table(summary)],
        _outputs(summary),
        _setting(run, summary),
        provenance(run),
    ]
    return Document.of(f"{code(second)} against {code(first)}", *sections)


def verdicts(summary: AbSummary) -> Table:
    """Return the table of ratios and verdicts."""
    rows: list[list[Cell]] = []
    for load in summary.loads:
        for entry in load.comparisons:
            name = load.load if entry is load.comparisons[0] else ""
            ratio = Estimate(entry.ratio, entry.interval)
            rows.append([name, FIGURES[entry.figure], ratio, entry.units, entry.verdict])
    columns = (
        "load",
        "metric",
        Column(f"{summary.names[1]} over {summary.names[0]}", "times"),
        Column("units", "count"),
    )
    return Table((*columns, "verdict"), rows)


def _rows(summary: AbSummary) -> list[tuple[LoadSummary, str, str, ServerFigures]]:
    """Return each load, its name where it is the first row of the load, and the figures of each server."""
    return [
        (load, load.load if name == summary.names[0] else "", name, load.servers[name])
        for load in summary.loads
        for name in summary.names
    ]


def _load_table(summary: AbSummary) -> Table:
    columns = (
        "load",
        "server",
        Column("tokens", "count"),
        Column("throughput", "rate"),
        Column("goodput", "rate"),
        Column("met the SLO", "share"),
        Column("in flight", "number"),
        Column("tokens per burst", "number"),
        Column("acceptance length", "number"),
        Column("tokens sent per round", "number"),
        Column("acceptance rate", "share"),
        Column("failed", "count"),
    )
    rows: list[list[Cell]] = []
    for _, title, name, figures in _rows(summary):
        speculation = figures.speculation
        rows.append(
            [
                title,
                code(name),
                figures.tokens,
                figures.throughput,
                figures.goodput,
                figures.attainment,
                figures.in_flight,
                figures.tokens_per_burst,
                Estimate(speculation.acceptance_length, speculation.interval) if speculation else None,
                speculation.tokens_per_round if speculation else None,
                speculation.acceptance_rate if speculation else None,
                figures.failed,
            ]
        )
    return Table(columns, rows).without_empty_columns()


def _latency_table(summary: AbSummary) -> Table:
    titles = [Column(f"{title} (P50, P95, P99)") for title in LATENCIES.values()]
    rows: list[list[Cell]] = []
    for _, title, name, figures in _rows(summary):
        cells = []
        for latency in LATENCIES:
            values = getattr(figures, latency)
            cells.append(" / ".join(seconds(getattr(values, percentile)) for percentile in PERCENTILES))
        rows.append([title, code(name), *cells])
    return Table(("load", "server", *titles), rows)


def _outputs(summary: AbSummary) -> list[Block]:
    rows = [
        (load.load, load.outputs.gate, wording.gate_sentence(load.outputs, summary.names)) for load in summary.loads
    ]
    blocks: list[Block] = [Heading("Outputs"), Table(("load", "gate", "pairs"), rows)]
    divergences = [(load.load, entry) for load in summary.loads for entry in load.outputs.divergences]
    if divergences:
        columns = ("load", "request", "first difference", "after", *summary.names)
        table = [
            (
                load,
                f"{code(entry.request_id)}, {_dialogue_turn(entry)}repeat {entry.repeat + 1}",
                f"{entry.unit} {count(entry.position + 1)}",
                _quoted(entry.before),
                _quoted(entry.first),
                _quoted(entry.second),
            )
            for load, entry in divergences
        ]
        blocks += [Paragraph("The first place at which two outputs of one prompt differ:"), Table(columns, table)]
    return blocks


def _dialogue_turn(entry: Divergence) -> str:
    return f"turn {entry.dialogue_turn + 1}, " if entry.dialogue_turn else ""


def _quoted(text: str) -> str:
    return code(text) if text else "the end"


def _dialogues(run: RunFile) -> str:
    """Return how many requests the prompts make, where some are dialogues of several turns."""
    requests, prompts = run.get("requests"), (run.get("dataset") or {}).get("count")
    return f" dialogues of {count(requests)} turns, each a request" if requests and requests != prompts else ""


def _setting(run: RunFile, summary: AbSummary) -> Blocks:
    config, dataset = run.get("config") or {}, run.get("dataset") or {}
    repeats = config.get("repeats")
    servers = [
        (
            code(entry["name"]),
            ", ".join(
                str(value)
                for value in (
                    entry["dialect"],
                    entry["address"],
                    last_part(entry.get("model") or ""),
                    entry.get("version"),
                )
                if value
            ),
        )
        for entry in run.get("servers") or ()
    ]
    turns = [f"{load.load}: {count(load.turns)} of {count(load.turn_requests)}" for load in summary.loads]
    rows = [
        *servers,
        ("prompts", f"{dataset.get('name')}, {count(dataset.get('count'))}{_dialogues(run)}"),
        ("most output tokens", count(config.get("max_new_tokens"))),
        ("sampling", sampling_sentence(config) if config else ABSENT),
        ("asked", f"{'once' if repeats == 1 else f'{count(repeats)} times'} at each server" if repeats else ABSENT),
        ("turns (of requests each)", "; ".join(turns)),
        ("order", run.get("order") or ABSENT),
    ]
    return [Heading("What was run"), facts(rows)]
