"""A comparison as a compact table on the terminal."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, TOO_FEW
from specbench_kit.reports import render_terminal
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.look import USUAL, Look
from specbench_kit.reports.document import Block, Cell, Column, Note, Paragraph, Table, caution
from specbench_kit.reports.run.answers import answer_cautions, answers_line
from specbench_kit.reports.sections import headlines, machine
from specbench_kit.reports.sections.columns import EVEN, EVEN_NOTE, LOSSLESS, MetricColumn, is_marked_even
from specbench_kit.reports.stored import Row
from specbench_kit.reports.writing.formatting import ABSENT, times

if TYPE_CHECKING:
    from rich.console import Console

VERDICT_WIDTH = 10
SHOWN = ("speedup (95%)", "throughput", "TPOT", "acceptance length")
MARKS = {NO_DIFFERENCE: EVEN, TOO_FEW: "?"}
MARKS_NOTE = f"under against, {EVEN} is {NO_DIFFERENCE} and ? {TOO_FEW}"
WINNER = "*"
WINNER_NOTE = f"{WINNER} the fastest here that can be deployed and is lossless; rows go from fast to slow"
UNDECIDED_NOTE = f"{WINNER} the fastest here that can be deployed, with its distribution undecided"


def print_comparison(console: "Console", comparison: Comparison, look: Look = USUAL) -> None:
    """Print a table with a row per method, what the intervals show, and all cautions."""
    rows, winner = comparison.overall.values(), winner_of(comparison)
    notes = [
        "" if not winner else UNDECIDED_NOTE if winner in comparison.undecided else WINNER_NOTE,
        EVEN_NOTE if any(map(is_marked_even, rows)) else "",
        MARKS_NOTE if any(row.get("verdict") in MARKS for row in rows) else "",
    ]
    # Answers are not added up over several datasets.
    judged = [run.summary for run in comparison.runs] if len(comparison.datasets) == 1 else []
    notes.append(answers_line(judged))
    blocks: list[Block] = [
        *caution(machine.of_all(run.fields for run in comparison.runs), severe=True),
        Note(wording.where(comparison)),
        _table(comparison, look.table_columns(SHOWN), winner),
        Paragraph(headlines.of_comparison(comparison)),
        *(Note(note) for note in notes if note),
        *caution([*wording.cautions(comparison), *answer_cautions(judged)]),
    ]
    render_terminal.show(console, blocks)


def winner_of(comparison: Comparison) -> str:
    """Return the row of the fastest method that can be deployed and is lossless.

    If differences are taken to a named method, the winner is the one that is shown to be furthest ahead of it. There
    is none (an empty text) if it is slower than plain decoding, whether or not that is shown.
    """
    bounds = {series.label for series in comparison.series if series.is_bound}
    rows = comparison.overall
    ahead = [label for label, row in rows.items() if row.get("verdict") == FASTER and label not in bounds]
    winner = max(ahead, key=lambda label: float(rows[label]["relative_speed"])) if ahead else comparison.reference
    beaten = (rows[winner].get("speedup") or 1.0) < 1 or len(rows) == 1
    return "" if beaten or winner in bounds else winner


def fastest_first(comparison: Comparison) -> list[str]:
    """Return the rows by speedup, which is 1 for the baseline; without a baseline by throughput."""
    rows = comparison.overall
    paired = any(row.get("speedup") for row in rows.values())
    speeds = {
        label: row.get("speedup") or 1.0 if paired else row.get("throughput") or 0.0 for label, row in rows.items()
    }
    return sorted(rows, key=lambda label: -float(speeds[label]))


def _table(comparison: Comparison, columns: Sequence[MetricColumn], winner: str) -> Table:
    against = Column("\n".join(["against", *wrap(comparison.reference, VERDICT_WIDTH)]), "count")
    last = [] if LOSSLESS in columns else [LOSSLESS]
    rows: list[list[Cell]] = []
    for label in fastest_first(comparison):
        row = comparison.overall[label]
        name = f"**{label}** {WINNER}" if label == winner else label
        rows.append([name, *(_cell(c, row) for c in columns), _against(row), *(_cell(c, row) for c in last)])
    # Throughput has its unit in the title alone, so that rows fit a terminal.
    titled = [Column("tok/s", "number") if column.unit == "rate" else column.narrow() for column in columns]
    return Table(("method", *titled, against, *last), rows)


def _cell(column: MetricColumn, row: Row) -> Cell:
    cell = column.cell(row)
    return cell.replace(", ", "\n") if isinstance(cell, str) else cell


def _against(row: Row) -> str:
    if not row.get("verdict"):
        return ABSENT
    if row["verdict"] in MARKS:
        return f"{times(row['relative_speed'])} {MARKS[row['verdict']]}"
    return "\n".join([times(row["relative_speed"]), *wrap(row["verdict"], VERDICT_WIDTH)])
