"""The document model of all reports: blocks that renderers turn into Markdown, HTML, LaTeX and
terminal output.

A report is written in three steps:

1. One function per section returns its blocks, or an empty list where there is nothing to say::

       def _rounds(summary: RoundSummary) -> Blocks:
           if not summary.rows:
               return []
           columns = (Column("method"), Column("rounds", "count"), Column("verify", "seconds"))
           rows = [(code(row.label), row.rounds, row.verify_s) for row in summary.rows]
           return [Heading("Rounds"), Table(columns, rows), Paragraph("Verify is the **mean** of a round.")]

   A cell is a number, which its column formats by its unit, an `Estimate` with an interval, or a finished text. A table
   of facts (name, value) has no titles: `facts(rows)`. What opens on a click is `Folded(title, blocks)`.
2. `Document.of(title, *sections)` joins the sections. `render_markdown.render(document)` and
   `render_html.render(document, drawings)` write its files, `render_terminal.show(console, blocks)` prints blocks,
   `render_latex.render(table, ...)` writes a table for a paper.
3. The sentence that states the result stands in `sections/headlines.py`, or in the folder of its kind of report;
   `sections/columns.py` declares every metric column once.

Texts may hold `code`, **bold text** and [links](to-a-file-beside-the-report); everything else in
them is shown as it is. The renderers neutralise tags and links to other hosts, since names and
texts come from files of strangers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Literal, TypeVar

from specbench_kit.metrics.vocabulary import Unit
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    data,
    interval,
    rate,
    seconds,
    share,
    significant,
    times,
)

T = TypeVar("T")
FORMATS: Mapping[str, Callable[[float | None], str]] = {
    "count": count,
    "number": significant,
    "tokens": significant,
    "share": share,
    "times": times,
    "seconds": seconds,
    "rate": rate,
    "bytes": data,
}
"""How a value of each unit is written."""
INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\[(?P<link>[^\]]*)\]\((?P<url>[^)\s]+)\)"
)
SAFE_URL = re.compile(r"(?:https://ui\.perfetto\.dev|[\w.-][\w./-]*)\Z")
"""Links that a report may hold: to a file beside it and to the viewer of timelines."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the two ends of its 95% interval; `mark` follows it, and a paper sets the `best`
    in bold.
    """

    value: float | None
    bounds: Sequence[float] | None = None
    mark: str = ""
    best: bool = False


Cell = str | float | Estimate | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, and the unit by which its numbers are written and set flush
    right.
    """

    title: str = ""
    unit: Unit | Literal["text", "bytes"] = "text"

    def text(self, cell: Cell) -> str:
        """Return the cell as inline text."""
        if isinstance(cell, str):
            return cell
        show = FORMATS.get(self.unit, _as_written)
        if not isinstance(cell, Estimate):
            return show(cell)
        # Factors close to 1 need more digits than three to tell the ends of their interval apart.
        ends = (
            interval(cell.bounds)
            if self.unit == "times" and cell.bounds
            else bounds_text(cell.bounds, show)
        )
        return show(cell.value) + (f" ({ends})" if ends else "") + cell.mark


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 1 is the document's title."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Text of less weight, which a terminal shows dimmed."""

    text: str


@dataclass(frozen=True, slots=True)
class Caution:
    """Lines that a reader must see before quoting a number; `severe` ones, which void the numbers,
    in red.

    The first `whole` of them change the conclusion, and are cut nowhere.
    """

    lines: Sequence[str]
    severe: bool = False
    whole: int = 0


@dataclass(frozen=True, slots=True)
class BulletList:
    """One line per item."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Text whose lines and characters are shown as they are."""

    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture in a file beside the report, at its relative `path`."""

    title: str
    path: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Small pictures in one line."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; a column given by its title alone holds text. The first column names the rows."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]

    @property
    def typed_columns(self) -> list[Column]:
        """All columns, those given by their title as columns of text."""
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    @property
    def titles(self) -> list[str]:
        """The titles of all columns."""
        return [column.title for column in self.typed_columns]

    def texts(self, show: Callable[[Column, Cell], str] = Column.text) -> list[list[str]]:
        """Return every row as texts, each cell as `show` writes it in its column: as inline text if
        not given.
        """
        columns = self.typed_columns
        rows = [zip(columns, row, strict=True) for row in self.rows]
        return [list(starmap(show, row)) for row in rows]

    def without_empty_columns(self) -> "Table":
        """Return the table less the columns in which no row has a value."""
        columns = zip(*self.texts(), strict=True)
        return self.select([index for index, texts in enumerate(columns) if set(texts) != {ABSENT}])

    def columns_of(self, titles: Sequence[str]) -> "Table":
        """Return the table less the columns whose titles are not among these."""
        return self.select([index for index, title in enumerate(self.titles) if title in titles])

    def select(self, places: Sequence[int]) -> "Table":
        """Return a table of the columns at these places."""
        return Table(_at(places, self.columns), [_at(places, row) for row in self.rows])


def _at(places: Sequence[int], values: Sequence[T]) -> list[T]:
    """Return the values at these places."""
    return [values[place] for place in places]


@dataclass(frozen=True, slots=True)
class Folded:
    """Blocks that open on a click on their title."""

    title: str
    blocks: Sequence["Block"]


Block = (
    Heading
    | Paragraph
    | Note
    | Caution
    | BulletList
    | CodeBlock
    | Figure
    | FigureRow
    | Table
    | Folded
)
Blocks = Sequence[Block]


@dataclass(frozen=True, slots=True)
class Document:
    """A report: its title, as inline text, and its blocks."""

    title: str
    blocks: Blocks

    @classmethod
    def of(cls, title: str, *sections: Iterable[Block]) -> "Document":
        """Return the document of these sections in their order; empty ones leave no trace."""
        return cls(title, [block for section in sections for block in section])


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and values without titles."""
    return Table(("", ""), rows)


def with_more_columns(table: Table, titles: Sequence[str]) -> list[Block]:
    """Return the columns with these titles as a table that fits a page, and the whole table to open
    if it has more.
    """
    first = table.columns_of(titles)
    return [
        first,
        *([Folded("All columns", [table])] if len(first.columns) < len(table.columns) else []),
    ]


def paragraphs(*texts: str) -> list[Paragraph]:
    """Return a paragraph for each text that is not empty."""
    return [Paragraph(text) for text in texts if text]


LABELLED = 80
"""Characters of a line in which a caution may be named, since a label of a method may stand before
it.
"""
CHANGES_THE_CONCLUSION = (
    "FORCED COMPARISON",
    "NOT LOSSLESS",
    "MACHINE OR ENGINE CHANGED",
    "IMPOSSIBLE TIMES",
    "SERVER-ONLY IS FASTER",
    "CONSTANT STEPS",
    "UNLIKE PROMPTS",
)
"""How cautions begin that turn a conclusion round; so do ranges over which a verdict does not
hold.
"""


def caution(lines: Sequence[str], severe: bool = False) -> list[Caution]:
    """Return a box of these lines, those first that change the conclusion, or nothing for no
    lines.
    """
    weighty = [line for line in lines if _changes_the_conclusion(line)]
    others = [line for line in lines if line not in weighty]
    return [Caution([*weighty, *others], severe, len(weighty))] if lines else []


def _changes_the_conclusion(line: str) -> bool:
    return (
        any(start in line[:LABELLED] for start in CHANGES_THE_CONCLUSION) or "does not hold" in line
    )


def code(text: str) -> str:
    """Return the text as inline code, in which backticks become quotes."""
    return "`" + text.replace("`", "'") + "`"


def link(text: str, path: str) -> str:
    """Return an inline link to a file beside the report."""
    return f"[{text}]({path})"


def bounds_text(bounds: Sequence[float] | None, show: Callable[[float | None], str]) -> str:
    """Return both ends of an interval as `show` writes them, or nothing where they read the
    same.
    """
    ends = [show(bound) for bound in bounds or ()]
    # A dash before a minus reads as two signs.
    return (" to " if min(bounds or (0,)) < 0 else "–").join(ends) if len(set(ends)) == 2 else ""


def _as_written(value: float | None) -> str:
    return ABSENT if value is None else str(value)


def plain(text: str) -> str:
    """Return an inline text without its marks, for a terminal or a page's title."""
    return INLINE.sub(lambda mark: mark["code"] or plain(mark["bold"] or mark["link"] or ""), text)


def spans(text: str) -> Iterator[tuple[str, re.Match[str] | None]]:
    """Yield the plain stretches and the marks of an inline text in turn, each mark with its
    match.
    """
    end = 0
    for mark in INLINE.finditer(text):
        yield text[end : mark.start()], None
        yield mark[0], mark
        end = mark.end()
    yield text[end:], None
