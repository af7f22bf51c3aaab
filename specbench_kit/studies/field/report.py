"""The page of what others measured: a sentence, predictions against measurements, and every number."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specbench_kit.reports.document import (
    Blocks,
    Column,
    Document,
    Figure,
    Heading,
    Paragraph,
    Table,
    caution,
    code,
)
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import seconds, share, times
from specbench_kit.reports.writing.palette import COLOURS, GREY
from specbench_kit.studies.field.summary import (
    NOTICEABLE,
    RATIOS,
    FieldCell,
    FieldResult,
    FieldSummary,
    score_of,
)
from specbench_kit.studies.field.tables import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORDS: dict[Metric, str] = {
    "throughput": "tokens per second with speculation",
    "plain_throughput": "tokens per second without",
    "speedup": "speedup in tokens per second",
    "response_p50_s": "median response with speculation",
    "response_p99_s": "99th percentile of responses with speculation",
    "plain_response_p50_s": "median response without",
    "plain_response_p99_s": "99th percentile of responses without",
    "response_p50_ratio": "how much sooner the median response ends",
    "response_p99_ratio": "how much sooner the 99th percentile of responses ends",
    "ttft_p50_s": "median time to the first token with speculation",
    "plain_ttft_p50_s": "median time to the first token without",
    "tpot_s": "time per output token with speculation",
    "plain_tpot_s": "time per output token without",
}
"""What each figure is, in words."""
FAR = 0.25
"""From how far off on the median of a table on the page warns of it."""
ABOUT = (
    "Each table was measured by people who do not know this kit. What went into a prediction stands beside it: "
    "'published' is what the source states, 'assumed' what it does not, and a number that was 'fitted' to a table, or "
    "is an 'input' of its prediction, counts no longer. A prediction is inside its range if the measured number lies "
    "between what the fast and the slow end of the derived times give: of kernels, of the host and of what the engine "
    "adds. The acceptance is always that of the source: how often drafts are right is nothing that a card could tell."
)


def headline(summary: FieldSummary) -> str:
    """Return how many numbers come out, and how far the others are off."""
    cells = summary.predicted
    if not cells:
        return "Nothing of these tables is a prediction: every number was put in or fitted."
    score = score_of(cells)
    tables = sum(bool(table.predicted) for table in summary.tables.values())
    signs = (
        f" Whether speculation pays comes out in {score.right_signs} of {score.signs} cells in which it matters by "
        f"more than {share(NOTICEABLE)}."
        if score.signs
        else ""
    )
    return (
        f"Of {score.cells} numbers that others measured, in {tables} {'tables' if tables > 1 else 'table'}, "
        f"{score.inside} ({share(score.share_inside)}) lie inside the range of their predictions, and half of the "
        f"predictions are off by {share(score.median_off)} at most.{signs}"
    )


def cautions(summary: FieldSummary) -> list[str]:
    """Return where the kit should not be believed: tables that are far off, with the named causes."""
    lines = []
    if summary.changes:
        lines.append(
            f"CHANGED INPUTS: {', '.join(map(code, summary.changes))}: these are not the predictions of the tables' "
            "own settings."
        )
    for name, table in summary.tables.items():
        if not table.predicted:
            continue
        score = score_of(table.predicted)
        wrong = score.signs - score.right_signs
        if score.median_off < FAR and not wrong:
            continue
        what = [f"half of it is off by more than {share(score.median_off)}"] * (
            score.median_off >= FAR
        )
        what += [f"{wrong} of {score.signs} signs are wrong"] * bool(wrong)
        why = f" {' '.join(table.causes)}" if table.causes else ""
        lines.append(
            f"NOT TO BE BELIEVED: {code(name)} ({table.title}): {' and '.join(what)}.{why}"
        )
    return lines


def build(summary: FieldSummary, figures: Sequence[Figure]) -> Document:
    """Return the page."""
    head: Blocks = [Paragraph(f"**{headline(summary)}**"), *caution(cautions(summary))]
    return Document.of(
        "Measured by others, predicted here",
        [*head, *figures[:1], *_settled_before(summary), Paragraph(ABOUT)],
        _overview(summary),
        figures[1:],
        *(_section(name, table) for name, table in summary.tables.items()),
    )


def terminal(summary: FieldSummary) -> Blocks:
    """Return what the command prints: the sentence, and a line per table or every number of one."""
    blocks: Blocks = [Paragraph(f"**{headline(summary)}**"), *caution(cautions(summary))]
    if len(summary.tables) > 1:
        return [*blocks, *_overview(summary)]
    for name, table in summary.tables.items():
        blocks = [*blocks, *_section(name, table)]
    return blocks


def _settled_before(summary: FieldSummary) -> Blocks:
    """Return how the predictions come out that were settled before a number was read, if there are
    such.
    """
    cells = summary.predicted_blind
    if not cells:
        return []
    score = score_of(cells)
    tables = sum(table.blind and bool(table.predicted) for table in summary.tables.values())
    return [
        Paragraph(
            f"Everything that goes into {tables} of the tables, marked 'blind', was settled before any of their "
            f"numbers was read: of these {score.cells} numbers {score.inside} ({share(score.share_inside)}) lie inside "
            f"their ranges, half are off by {share(score.median_off)} at most, and {score.right_signs} of "
            f"{score.signs} signs come out. The numbers of the others were known while the kit was written, or an "
            "input was chosen after they were read."
        )
    ]


def _overview(summary: FieldSummary) -> Blocks:
    rows = []
    for name, table in summary.tables.items():
        cells = table.predicted
        if not cells:
            rows.append((code(name), table.title, "", "none predicted", "", "", ""))
            continue
        score = score_of(cells)
        worst = max(cells, key=lambda cell: cell.off)
        rows.append(
            (
                code(name),
                table.title,
                "blind" if table.blind else "",
                f"{score.inside} of {score.cells}",
                share(score.median_off),
                f"{times(worst.ratio)} ({worst.series}, {_at(table, worst.load)})",
                f"{score.right_signs} of {score.signs}" if score.signs else "",
            )
        )
    columns = ("table", "what", "predicted", "inside the range", "off by, median", "worst", "signs")
    return [Table(columns, rows)]


def _section(name: str, table: FieldResult) -> Blocks:
    columns = (
        "series",
        table.loads,
        "figure",
        "role",
        Column("measured"),
        Column("predicted"),
        "range",
        "predicted / measured",
        "inside",
    )
    rows = [
        (
            cell.series,
            f"{cell.load:g}",
            WORDS[cell.metric],
            cell.role,
            _number(cell.metric, cell.measured),
            _number(cell.metric, cell.predicted),
            f"{_number(cell.metric, cell.least)} to {_number(cell.metric, cell.most)}",
            times(cell.ratio),
            "yes" if cell.inside else "no",
        )
        for cell in table.cells
    ]
    inputs = [(one.name, one.value, one.origin) for one in table.inputs]
    even = [
        f"{place} requests {length:.2f}"
        if table.loads == "requests in flight"
        else f"{place}/s {length:.2f}"
        for place, length in table.break_even.items()
    ]
    return [
        Heading(table.title),
        Paragraph(f"{code(name)}: {table.setting}. Source: {table.source}."),
        Table(columns, rows),
        *(
            [Paragraph(f"**What does not come out, and why.** {' '.join(table.causes)}")]
            if table.causes
            else []
        ),
        Paragraph(
            f"By these predictions speculation pays from so many tokens a round on: {'; '.join(even)}."
        ),
        Table(("input", "value", "origin"), inputs),
    ]


def _number(metric: Metric, value: float) -> str:
    if metric in RATIOS:
        return times(value)
    return seconds(value) if metric.endswith("_s") else f"{value:,.0f}"


def _at(table: FieldResult, load: float) -> str:
    return f"{load:g} in flight" if table.loads == "requests in flight" else f"{load:g}/s"


def pictures(summary: FieldSummary) -> Iterator[Picture]:
    """Yield predictions against measurements of all ratios, and how far each table is off."""
    ratios = [cell for cell in summary.predicted if cell.metric in RATIOS]
    if ratios:
        yield _against(ratios)
    tables = {name: table.predicted for name, table in summary.tables.items() if table.predicted}
    if tables:
        yield _by_table(tables)


INSIDE, OUTSIDE = COLOURS[0], COLOURS[3]


def _against(cells: Sequence[FieldCell]) -> Picture:
    def paint(axes: "Axes") -> None:
        ends = [value for cell in cells for value in (cell.measured, cell.predicted)]
        low, high = min(ends) / 1.15, max(ends) * 1.15
        for inside, colour, marker, label in (
            (True, INSIDE, "o", "measured within the prediction's range"),
            (False, OUTSIDE, "x", "outside"),
        ):
            chosen = [cell for cell in cells if cell.inside == inside]
            axes.errorbar(
                [cell.measured for cell in chosen],
                [cell.predicted for cell in chosen],
                yerr=(
                    [max(0.0, cell.predicted - cell.least) for cell in chosen],
                    [max(0.0, cell.most - cell.predicted) for cell in chosen],
                ),
                fmt=marker,
                color=colour,
                markersize=3.5,
                elinewidth=0.6,
                linestyle="none",
                label=label,
            )
        axes.plot((low, high), (low, high), color=GREY, linewidth=0.8)
        axes.axhline(1, color=GREY, linewidth=0.5, linestyle=":")
        axes.axvline(1, color=GREY, linewidth=0.5, linestyle=":")
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set(
            xlabel="measured speedup",
            ylabel="predicted speedup, with its range",
            xlim=(low, high),
            ylim=(low, high),
        )
        axes.legend(fontsize=7, loc="upper left", frameon=False)

    return Picture(
        "predicted_measured",
        "Speedups: predicted against measured",
        "Each mark is one measured speedup; bars are the range of what was derived. On the line both agree; left of "
        "and below the dotted lines speculation loses.",
        4.0,
        paint,
    )


ROW_IN = 0.22


def _by_table(tables: dict[str, list[FieldCell]]) -> Picture:
    names = list(tables)[::-1]

    def paint(axes: "Axes") -> None:
        for row, name in enumerate(names):
            for cell in tables[name]:
                colour = INSIDE if cell.inside else OUTSIDE
                axes.plot(
                    cell.ratio, row, marker="o" if cell.inside else "x", color=colour, markersize=4
                )
        axes.axvline(1, color=GREY, linewidth=0.8)
        axes.axvspan(0.9, 1.1, color=GREY, alpha=0.12, linewidth=0)
        axes.set_yticks(range(len(names)), [name.partition("/")[2] for name in names], fontsize=7)
        logarithmic(axes, "x")
        axes.set(xlabel="predicted / measured", ylim=(-0.6, len(names) - 0.4))

    return Picture(
        "by_table",
        "How far predictions are off, table by table",
        "A dot lies inside the range of its prediction, a cross outside; the grey band is 10% to either side.",
        0.9 + ROW_IN * len(names),
        paint,
    )
