"""A comparison as a compact table on the terminal."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, SLOWER, TOO_FEW
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.look import USUAL, Look
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.console import empty_table, print_warnings
from specbench_kit.reports.writing.formatting import ABSENT, times

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERDICT_WIDTH = 10
SHOWN = ("speedup (95%)", "throughput", "TPOT", "acceptance length")
MARKS = {NO_DIFFERENCE: wording.EVEN, TOO_FEW: "?"}
MARKS_NOTE = f"under against, {wording.EVEN} is {NO_DIFFERENCE} and ? {TOO_FEW}"
UNIT = " tok/s"
"""Of throughput, which stands at its head alone, so that rows fit."""
WINNER = "*"
WINNER_NOTE = f"{WINNER} the fastest here that can be deployed and is lossless; rows go from fast to slow"


def print_comparison(console: "Console", comparison: Comparison, look: Look = USUAL) -> None:
    """One table with a row per method, what the intervals show, and everything that must be known before quoting it."""
    from rich.text import Text

    winner = winner_of(comparison)
    print_warnings(console, machine.of_all(run.fields for run in comparison.runs))
    console.print(Text(wording.where(comparison), style="dim"))
    console.print(_comparison_table(comparison, look.of(SHOWN), winner))
    console.print(Text(wording.headline(comparison).replace("`", "")))
    if winner:
        console.print(Text(WINNER_NOTE, style="dim"))
    if any(wording.EVEN in wording.speedup_cell(row) for row in comparison.overall.values()):
        console.print(Text(wording.EVEN_NOTE, style="dim"))
    if any(row.get("verdict") in MARKS for row in comparison.overall.values()):
        console.print(Text(MARKS_NOTE, style="dim"))
    for line in wording.cautions(comparison):
        console.print(Text(line.replace("`", ""), style="bold yellow"))


def winner_of(comparison: Comparison) -> str:
    """The row of the fastest method that can be deployed and is lossless; none where it is slower than plain decoding.

    Where differences are taken to a named method, it is the one that is shown to be furthest ahead of that.
    """
    bounds = {one.label for one in comparison.series if one.is_bound}
    rows = comparison.overall
    ahead = [label for label, row in rows.items() if row.get("verdict") == FASTER and label not in bounds]
    found = max(ahead, key=lambda label: float(rows[label]["relative_speed"])) if ahead else comparison.reference
    beaten = rows[found].get("speedup_verdict") == SLOWER or len(rows) == 1
    return "" if beaten or found in bounds else found


def fastest_first(comparison: Comparison) -> list[str]:
    """Rows by their speedup, of which the baseline has 1; where there is no baseline, by their throughput."""
    rows = comparison.overall
    paired = any(row.get("speedup") for row in rows.values())
    speeds = {
        label: row.get("speedup") or 1.0 if paired else row.get("throughput") or 0.0 for label, row in rows.items()
    }
    return sorted(rows, key=lambda label: -float(speeds[label]))


def _comparison_table(comparison: Comparison, columns: Sequence[str], winner: str) -> "Table":
    from rich.text import Text

    against = "\n".join(["against", *wrap(comparison.reference, VERDICT_WIDTH)])
    last = [name for name in ("lossless",) if name not in columns]
    table = empty_table([*map(_header, columns), against, *last])
    for label in fastest_first(comparison):
        row = comparison.overall[label]
        cells = [wording.COLUMNS[name](row).removesuffix(UNIT).replace(", ", "\n") for name in columns]
        cells += [_against(row), *(wording.COLUMNS[name](row).replace(", ", "\n") for name in last)]
        name = Text(f"{label} {WINNER}", style="bold") if label == winner else Text(label)
        table.add_row(name, *map(Text, cells))
    return table


def _header(name: str) -> str:
    return UNIT.strip() if name == "throughput" else name.replace(" / ", " /\n")


def _against(row: Mapping[str, Any]) -> str:
    if not row.get("verdict"):
        return ABSENT
    if row["verdict"] in MARKS:
        return f"{times(row['relative_speed'])} {MARKS[row['verdict']]}"
    return "\n".join([times(row["relative_speed"]), *wrap(row["verdict"], VERDICT_WIDTH)])
