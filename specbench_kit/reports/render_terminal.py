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
    from rich.table import Table as RichTable
    from rich.text import Text

NARROWEST = 8
"""Characters that a column of text keeps on a narrow terminal."""


def show(console: "Console", blocks: Iterable[Block]) -> None:
    """Print the blocks; figures are left out."""
    from rich.text import Text

    for block in blocks:
        match block:
            case Heading():
                console.print(Text(plain(block.text), style="bold"))
            case Paragraph():
                console.print(_inline(block.text))
            case Note():
                console.print(Text(plain(block.text), style="dim"))
            case Caution():
                for line in block.lines:
                    console.print(Text(plain(line), style="bold red" if block.severe else "bold yellow"))
            case BulletList():
                for item in block.items:
                    console.print(Text("- ") + _inline(item))
            case CodeBlock():
                console.print(Text(block.text))
            case Table():
                console.print(_table(block))
            case Folded():
                show(console, [Heading(block.title), *block.blocks])
            case Figure() | FigureRow():
                pass


def _table(table: Table) -> "RichTable":
    """Return a table whose columns of text fold at its width, while numbers are never broken."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=any(table.titles))
    for column in table.typed_columns:
        title = Text(plain(column.title))
        if column.unit == "text":
            drawn.add_column(title, overflow="fold", min_width=NARROWEST)
        else:
            drawn.add_column(title, justify="right", no_wrap=True)
    for row in table.texts():
        drawn.add_row(*map(_inline, row))
    return drawn


def _inline(text: str) -> "Text":
    from rich.text import Text

    parts = [(plain(part), "bold" if mark is not None and mark["bold"] else "") for part, mark in spans(text)]
    return Text.assemble(*parts)
