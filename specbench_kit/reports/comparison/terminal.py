"""A comparison as a compact table on the terminal."""

from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.console import empty_table, print_warnings
from specbench_kit.reports.writing.formatting import ABSENT, times

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERDICT_WIDTH = 14


def print_comparison(console: "Console", comparison: Comparison) -> None:
    """One table with a row per method, what the intervals show, and everything that must be known before quoting it."""
    from rich.text import Text

    print_warnings(console, machine.of_all(run.fields for run in comparison.runs))
    console.print(Text(wording.where(comparison), style="dim"))
    console.print(_comparison_table(comparison))
    console.print(Text(wording.headline(comparison).replace("`", "")))
    if any(wording.EVEN in wording.speedup_cell(row) for row in comparison.overall.values()):
        console.print(Text(wording.EVEN_NOTE, style="dim"))
    for line in wording.cautions(comparison):
        console.print(Text(line.replace("`", ""), style="bold yellow"))


def _comparison_table(comparison: Comparison) -> "Table":
    from rich.text import Text

    against = "\n".join(["against", *wrap(comparison.reference, VERDICT_WIDTH)])
    table = empty_table(["speedup (95%)", "tokens /\nverify", "acceptance", against, "lossless"])
    groups = {labels[0]: group for group, labels in comparison.by_group.items()}
    ordered = [label for labels in comparison.by_group.values() for label in labels] or list(comparison.overall)
    for label in ordered:
        row = comparison.overall[label]
        if label in groups:
            table.add_row(Text(f"[{groups[label]}]", style="bold"))
        cells = [wording.COLUMNS[name](row) for name in ("speedup (95%)", "tokens / verify", "acceptance")]
        cells += [_against(row), wording.lossless_cell(row).replace(", ", "\n")]
        table.add_row(Text(label), *map(Text, cells))
    return table


def _against(row: Mapping[str, Any]) -> str:
    if not row.get("verdict"):
        return ABSENT
    return "\n".join([times(row["relative_speed"]), *wrap(row["verdict"], VERDICT_WIDTH)])
