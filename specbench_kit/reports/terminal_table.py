"""Tables on a terminal whose words stay whole: text wraps between words, and columns without room
go below the others.

rich cuts a cell that is too wide inside a word, or shortens it with an ellipsis; the layout here
does neither.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

GAP = " "
INDENT = "  "
"""What stands before the further lines of a text that wraps."""
LONGEST_WORD = 24
"""Characters of a word that is never divided; a path or a list of options that is longer breaks at
its punctuation.
"""
BETWEEN_WORDS = re.compile(r"[^\S\xa0]+(?!\W(?:\s|$))")
"""Where a text may wrap: between words, but not before a lone mark such as the star of the fastest
method.

A no-break space is no such place.
"""
BEFORE_INTERVAL = re.compile(r" (?=\()")
"""Where a number may wrap: between a value and its interval."""
PUNCTUATION = re.compile(r"(?<=[,;+/&])(?=.)")


@dataclass(frozen=True, slots=True)
class TerminalColumn:
    """The cells of a column, the first of which is its title if it has one; numbers are flush
    right.
    """

    cells: Sequence[Text]
    is_number: bool
    has_title: bool = False

    @property
    def preferred(self) -> int:
        """The width at which no cell wraps."""
        return max(map(_width, self.cells))

    @property
    def untitled(self) -> int:
        """The width at which no cell wraps but the title."""
        return (
            max(self.least, *map(_width, self.cells[int(self.has_title) :]))
            if len(self.cells) > 1
            else self.least
        )

    @property
    def least(self) -> int:
        """The width below which a word would be cut."""
        return max(
            cell_len(piece) + (len(indent) if number else 0)
            for cell in self.cells
            for between, indent in [self._wrapping(cell)]
            for line in cell.plain.split("\n")
            for number, piece in enumerate(_pieces(line, between))
        )

    def wrapped(self, cell: Text, width: int) -> list[Text]:
        """Return the lines of a cell in a column of this width, each filled up to it."""
        lines = wrapped_lines(cell, width, *self._wrapping(cell))
        for line in lines:
            fill = line.pad_left if self.is_number else line.pad_right
            fill(width - line.cell_len)
        return lines

    def _wrapping(self, cell: Text) -> tuple[re.Pattern[str], str]:
        """Return where a cell may wrap, and what its further lines begin with."""
        if self.has_title and cell is self.cells[0]:
            return BETWEEN_WORDS, ""
        return (BEFORE_INTERVAL, "") if self.is_number else (BETWEEN_WORDS, INDENT)


def wrapped_lines(
    text: Text, width: int, between: re.Pattern[str] = BETWEEN_WORDS, indent: str = INDENT
) -> list[Text]:
    """Return the lines of a text that wraps where `between` allows it; further lines begin with the
    indent.
    """
    lines = []
    for line in text.split("\n", allow_blank=True):
        breaks = list(_line_breaks(line.plain, width, between, len(indent)))
        for number, part in enumerate(line.divide(breaks)):
            part.rstrip()
            lines.append(Text(indent) + part if number else part)
    return lines


def table_lines(columns: Sequence[TerminalColumn], width: int) -> Iterator[Text]:
    """Yield the lines of a table; the columns that do not fit follow below, behind the first column
    again.
    """
    for number, block in enumerate(_blocks(columns, width)):
        if number:
            yield Text()
        widths = _widths(block, width)
        for cells in zip(*(column.cells for column in block), strict=True):
            wrapped = [
                column.wrapped(cell, own)
                for column, cell, own in zip(block, cells, widths, strict=True)
            ]
            blanks = [Text(" " * own) for own in widths]
            for parts in zip_longest(*wrapped):
                line = Text(GAP).join(
                    part or blank for part, blank in zip(parts, blanks, strict=True)
                )
                line.rstrip()
                yield line


def _width(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def _pieces(line: str, between: re.Pattern[str]) -> list[str]:
    """Return the parts of a line that are never divided."""
    return [
        piece
        for word in between.split(line)
        for piece in (PUNCTUATION.split(word) if len(word) > LONGEST_WORD else [word])
    ]


def _line_breaks(line: str, width: int, between: re.Pattern[str], indent: int) -> Iterator[int]:
    """Yield the offsets at which a line goes on in the next one: as late as the width allows."""
    start = end = taken = 0
    for piece in _pieces(line, between):
        begin = line.index(piece, end)
        end = begin + len(piece)
        if begin > start and taken + cell_len(line[start:end]) > width:
            yield begin
            start = begin
            taken = indent


def _blocks(columns: Sequence[TerminalColumn], width: int) -> list[list[TerminalColumn]]:
    """Return the columns in groups that fit the width at their least, each with the first
    column.
    """
    first, *others = columns
    blocks = [[first]]
    for column in others:
        if len(blocks[-1]) > 1 and _total([each.least for each in [*blocks[-1], column]]) > width:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def _widths(columns: Sequence[TerminalColumn], width: int) -> list[int]:
    """Return the widths of columns side by side: titles give way first, then text, and numbers
    last.
    """
    widths = [column.preferred for column in columns]

    def narrow(index: int, least: int) -> None:
        excess = max(0, _total(widths) - width)
        widths[index] -= min(excess, widths[index] - least)

    for index in sorted(range(len(columns)), key=lambda i: -widths[i]):
        narrow(index, columns[index].untitled)
    for index in sorted(range(len(columns)), key=lambda i: (columns[i].is_number, -widths[i])):
        narrow(index, columns[index].least)
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)
