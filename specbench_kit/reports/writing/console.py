"""What reports share on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_warnings(console: "Console", lines: Sequence[str]) -> None:
    """What must be read before any number."""
    from rich.text import Text

    for line in lines:
        console.print(Text(line, style="bold red"))


def empty_table(columns: Sequence[str]) -> "Table":
    """A column of methods, and those that are named beside it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table
