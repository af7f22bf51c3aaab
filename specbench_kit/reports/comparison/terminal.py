"""A comparison as a compact table on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.metrics.result import Comparison, MethodSeries, RunResult
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.verdicts import FASTER, NOT_LOSSLESS, SAMPLING_UNDECIDED, UNCHECKED
from specbench_kit.reports import render_terminal
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.report import USUAL, Look
from specbench_kit.reports.document import Block, Cell, Column, Note, Paragraph, Table, caution
from specbench_kit.reports.run.sections import answer_cautions, answers_line
from specbench_kit.reports.sections import headlines, machine
from specbench_kit.reports.sections.columns import (
    LOSSLESS,
    MARKS,
    MetricColumn,
    mark_words,
    marks_note,
)
from specbench_kit.reports.writing.formatting import ABSENT, times

if TYPE_CHECKING:
    from rich.console import Console

UNCOUNTED = "!"
UNCOUNTED_VERDICTS = (NOT_LOSSLESS, UNCHECKED, SAMPLING_UNDECIDED)
MARKS_AGAINST = MARKS | dict.fromkeys(UNCOUNTED_VERDICTS, UNCOUNTED)
"""What follows a ratio that names no winner, by its verdict; a ratio without a mark is shown to
differ from 1.
"""
UNCOUNTED_WORDS = "faster, but with outputs that do not count"
MOST_ROWS = 12
FIRST_ROWS = 10
"""Of a table with more rows than the former the terminal shows the fastest, the winner, and what
rows are against.
"""
WINNER = "*"
WINNER_NOTE = f"{WINNER} fastest lossless, deployable method; rows go from fast to slow"
UNDECIDED_NOTE = f"{WINNER} fastest deployable method, with its distribution undecided"


FEW = 5
"""Rows up to which a screen has room for the break-even, which the report always has."""


def print_comparison(console: "Console", comparison: Comparison, look: Look = USUAL) -> None:
    """Print a table with a row per method, what the intervals show, and all cautions."""
    winner = winner_of(comparison)
    shown = _shown(comparison, winner)
    hidden = len(comparison.overall) - len(shown)
    rows = [comparison.overall[label] for label in shown]
    notes = [
        "" if not winner else UNDECIDED_NOTE if winner in comparison.undecided else WINNER_NOTE,
        f"{hidden} more rows in the report" if hidden else "",
        _against_note(comparison),
        marks_note(rows),
        wording.break_even_words(comparison) if len(shown) <= FEW else "",
        wording.decision_words(comparison),
        wording.power_words(comparison),
        wording.options_note(comparison, shown),
    ]
    # Answers are not added up over several datasets.
    judged = [run.summary for run in comparison.runs] if len(comparison.datasets) == 1 else []
    notes.append(answers_line(judged))
    # What turns the headline round stands below it, not below a long table.
    server_only = wording.server_only(comparison)
    others = [line for line in wording.cautions(comparison) if line not in server_only]
    blocks: list[Block] = [
        *caution(machine.warnings(*(run.fields for run in comparison.runs)), severe=True),
        Paragraph(f"**{headlines.of_comparison(comparison)}**"),
        *caution(server_only),
        Note(wording.where(comparison)),
        _table(comparison, look.table_columns("terminal"), winner, shown),
        *(Note(note) for note in notes if note),
        *caution([*others, *answer_cautions(judged)]),
    ]
    render_terminal.show(console, blocks)


def _shown(comparison: Comparison, winner: str) -> list[str]:
    """Return the labels of the rows that a screen has room for, from fast to slow."""
    folded = {*comparison.folded} - {winner}
    labels = [label for label in comparison.from_fast_to_slow().overall if label not in folded]
    if len(labels) <= MOST_ROWS:
        return labels
    baselines = [series.label for series in comparison.series if series.is_baseline]
    kept = {*labels[:FIRST_ROWS], winner, comparison.reference, *baselines}
    return [label for label in labels if label in kept]


def winner_of(comparison: Comparison) -> str:
    """Return the row of the fastest method that can be deployed and is lossless.

    If differences are taken to a named method, the winner is the one that is shown to be furthest
    ahead of it. There is none (an empty text) if it is slower than autoregressive decoding, whether
    or not that is shown, nor where all rows are runs of one method, or another row that it is level
    with by the verdicts has the higher speed.
    """
    bounds = {series.label for series in comparison.series if series.is_bound}
    rows = comparison.overall
    ahead = [label for label, row in rows.items() if row.verdict == FASTER and label not in bounds]
    winner = (
        max(ahead, key=lambda label: rows[label].typical_relative_speed or 0.0)
        if ahead
        else comparison.reference
    )
    is_slower = (rows[winner].typical_speedup or 1.0) < 1
    is_passed = winner == comparison.reference and _is_passed(comparison)
    nothing_to_choose = len({_without_number(series.label) for series in _methods(comparison)}) < 2
    return "" if is_slower or is_passed or nothing_to_choose or winner in bounds else winner


def _is_passed(comparison: Comparison) -> bool:
    """Return True if a row that competes with the reference is faster than it, although that is not
    shown.

    A reference that was chosen is the fastest method, of which the first run stands for all; one
    that the user named may be any.
    """
    method = _without_number(comparison.reference)
    competing = [
        comparison.overall[series.label]
        for series in _methods(comparison)
        if not series.is_bound and (comparison.is_named or _without_number(series.label) == method)
    ]
    return any(
        (row.typical_relative_speed or 0.0) > 1 and row.verdict not in UNCOUNTED_VERDICTS
        for row in competing
    )


def _without_number(label: str) -> str:
    """Return the label without the number that tells several runs of one method apart."""
    return label.partition(" #")[0]


def _methods(comparison: Comparison) -> list[MethodSeries[RunResult]]:
    """Return the rows besides autoregressive decoding."""
    return [series for series in comparison.series if not series.is_baseline]


def _has_rivals(comparison: Comparison) -> bool:
    """Return True if there are several rows besides autoregressive decoding."""
    return len(_methods(comparison)) > 1


def _table(
    comparison: Comparison, columns: Sequence[MetricColumn], winner: str, shown: Sequence[str]
) -> Table:
    against = [Column("against", "count")] if _has_rivals(comparison) else []
    last = [] if LOSSLESS in columns else [LOSSLESS]
    labels = wording.short_labels(comparison)
    rows: list[list[Cell]] = []
    for label in shown:
        row = comparison.overall[label]
        # The star stands behind the name, so that it stays there where the options wrap.
        name, *options = labels[label].split(" ", 1)
        cells = [" ".join([f"**{name}** {WINNER}" if label == winner else name, *options])]
        rows.append(
            [
                *cells,
                *(_cell(c, row) for c in columns),
                *(_against(row) for _ in against),
                *(_cell(c, row) for c in last),
            ]
        )
    # Throughput has its unit in the title alone, so that rows fit a terminal.
    titled = [
        Column("tok/s", "number") if column.unit == "rate" else column.narrow()
        for column in columns
    ]
    return Table(("method", *titled, *against, *last), rows)


def _cell(column: MetricColumn, row: MethodRow) -> Cell:
    cell = column.cell(row)
    return cell.replace(", ", "\n") if isinstance(cell, str) else cell


def _against(row: MethodRow) -> str:
    if not row.verdict:
        return ABSENT
    mark = MARKS_AGAINST.get(row.verdict)
    return times(row.typical_relative_speed) + (f" {mark}" if mark else "")


def _against_note(comparison: Comparison) -> str:
    """Return which row the column `against` refers to, and what its marks mean."""
    if not _has_rivals(comparison):
        return ""
    verdicts = [row.verdict for row in comparison.overall.values() if row.verdict]
    words = {
        mark: mark_words(verdict, len(verdicts)) if verdict in MARKS else UNCOUNTED_WORDS
        for verdict, mark in MARKS_AGAINST.items()
        if verdict in verdicts
    }
    return "; ".join(
        [f"against: speed relative to {comparison.reference}", *map(": ".join, words.items())]
    )
