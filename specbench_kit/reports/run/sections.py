"""The sections of the report on one run."""

from collections.abc import Callable, Mapping, Sequence

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.attainment import PROMISE, SCALES
from specbench_kit.metrics.by_drafter import by_drafter
from specbench_kit.metrics.vocabulary import BASELINE, DISTRIBUTIONS, LISTS, METRICS, OVERLAP
from specbench_kit.reports.document import (
    Block,
    Blocks,
    BulletList,
    CodeBlock,
    Column,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Table,
    code,
    paragraphs,
)
from specbench_kit.reports.run.lossless import capped_table
from specbench_kit.reports.sections import wording
from specbench_kit.reports.sections.columns import COLUMNS, value_with_interval
from specbench_kit.reports.stored import Row, RunFile, Summary
from specbench_kit.reports.writing.formatting import seconds, share, shorten_head, shorten_tail

Decode = Callable[[list[int]], str]

RESULTS = (
    "speedup (95%)",
    "throughput",
    "acceptance length",
    "acceptance rate",
    "draft efficiency",
    "TTFT",
    "TPOT",
    "WDT",
)
BY_CATEGORY = ("speedup (95%)", "acceptance length", "acceptance rate", "draft efficiency", "TPOT")
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


def results(sides: Mapping[str, Row]) -> Table:
    """Return the table of the method and its baseline."""
    columns = [COLUMNS[title] for title in RESULTS]
    rows = [[_name(label), *(column.cell(row) for column in columns)] for label, row in sides.items()]
    return Table(("method", *columns), rows)


def _name(label: str) -> str:
    return label if label == BASELINE else code(label)


def latency(run: RunFile, sides: Mapping[str, Row]) -> Blocks:
    """Return TTFT, TPOT and ITL of each side, and the SLO attainment if it is known."""
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
        slo = f"SLO attainment; the SLO is a factor times the {PROMISE}th percentile of TPOT in autoregressive decoding"
        blocks.append(Paragraph(f"{slo}: {text}."))
    return blocks


def categories(summary: Summary) -> Blocks:
    """Return the table of the dataset's categories."""
    columns = [COLUMNS[title] for title in BY_CATEGORY]
    rows = [
        (name, part["finished"], part["tokens"], *(column.cell(part) for column in columns))
        for name, part in summary["categories"].items()
    ]
    header: list[Column | str] = ["category", Column("requests", "count"), Column("tokens", "count"), *columns]
    return [Heading("By category"), Table(header, rows)] if rows else []


def positions(overall: Row) -> Blocks:
    """Return how often each draft position was accepted, up to the last that ever was."""
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


def drafters(records: Sequence[RequestRecord]) -> Blocks:
    """Return the rounds of each drafter, if the method takes the drafts of a round from one of several."""
    rows = [
        (part.name, part.rounds, part.share, part.acceptance_rate, part.acceptance_length)
        for part in by_drafter(records)
    ]
    columns: list[Column | str] = [
        "drafter",
        Column("rounds", "count"),
        Column("share of rounds", "share"),
        Column("acceptance rate", "share"),
        Column("acceptance length", "number"),
    ]
    return [Heading("By drafter"), Table(columns, rows)] if rows else []


def phases(run: RunFile, sides: Mapping[str, Row]) -> Blocks:
    """Return the busy time of each phase."""
    rows = []
    for phase in next(iter(sides.values()))["phase_seconds"]:
        busy = [(row["phase_seconds"][phase], row["phase_share"][phase]) for row in sides.values()]
        if any(busy_s for busy_s, _ in busy):
            rows.append((phase, *(f"{seconds(busy_s)} ({share(part)})" for busy_s, part in busy)))
    table = Table(("phase", *map(_name, sides)), rows)
    return [Heading(f"Where the time goes ({run.get('time_kind')})"), table] if rows else []


def overlap(run: RunFile, summary: Summary) -> Blocks:
    """Return what drafting while the target verifies gains, for a method that does so."""
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


def exports(exports: Sequence[str]) -> Blocks:
    """Return links to the files of the run directory that are listed."""
    blocks = [block for name, block in EXPORTS.items() if name in exports]
    return [Heading("Timeline and tokens"), *blocks] if blocks else []


def failures(records: Sequence[RequestRecord]) -> Blocks:
    """Return the requests that ended in an error."""
    rows = [(record.request_id, record.error or "no message") for record in records if record.finish_reason == "error"]
    return [Heading("Failed requests"), *capped_table(["request", "error"], rows)] if rows else []


def example(records: Sequence[RequestRecord], decode: Decode | None) -> Blocks:
    """Return the prompt and the output of the first request that did not fail."""
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
