"""Blocks of a document on a terminal, by rich."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specbench_kit.reports.document import (
    Block,
    BulletList,
    Caution,
    CodeBlock,
    Figure,
    FigureRow,
    Folded,
    Heading,
    Note,
    Paragraph,
    Table,
    plain,
    spans,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from specbench_kit.reports.terminal_table import TerminalColumn


def show(console: "Console", blocks: Iterable[Block]) -> None:
    """Print the blocks; figures are left out. A word that is longer than a line is printed
    whole.
    """
    from rich.text import Text

    from specbench_kit.reports.terminal_table import table_lines, wrapped_lines

    def tell(text: Text, indent: str = "") -> None:
        for line in wrapped_lines(text, console.width, indent=indent):
            console.print(line, soft_wrap=True)

    for block in blocks:
        match block:
            case Heading():
                tell(Text(plain(block.text), style="bold"))
            case Paragraph():
                tell(_inline(block.text))
            case Note():
                tell(Text(plain(block.text), style="dim"))
            case Caution():
                for line in block.lines:
                    tell(Text(plain(line), style="bold red" if block.severe else "bold yellow"))
            case BulletList():
                for item in block.items:
                    tell(Text("- ") + _inline(item), indent="  ")
            case CodeBlock():
                console.print(Text(block.text), soft_wrap=True)
            case Table():
                for row in table_lines(_columns(block), console.width):
                    console.print(row, soft_wrap=True)
            case Folded():
                show(console, [Heading(block.title), *block.blocks])
            case Figure() | FigureRow():
                pass


def _columns(table: Table) -> list["TerminalColumn"]:
    """Return the columns with their titles, unless all titles are empty, and their cells."""
    from rich.text import Text

    from specbench_kit.reports.terminal_table import TerminalColumn

    rows = [list(map(_inline, row)) for row in table.texts()]
    has_titles = any(table.titles)
    if has_titles:
        rows.insert(0, [Text(plain(title), style="bold") for title in table.titles])
    columns = zip(table.typed_columns, zip(*rows, strict=True), strict=True)
    return [TerminalColumn(cells, column.unit != "text", has_titles) for column, cells in columns]


def _inline(text: str) -> "Text":
    from rich.text import Text

    parts = [
        (plain(part), "bold" if mark is not None and mark["bold"] else "")
        for part, mark in spans(text)
    ]
    return Text.assemble(*parts)
