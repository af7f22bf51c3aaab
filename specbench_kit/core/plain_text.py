"""Make text from foreign files safe to print, in one line without what controls a terminal, and to
write as CSV.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from io import StringIO
from textwrap import wrap
from typing import Any


def one_line(text: str) -> str:
    """Return the text with each run of white space as one blank, and unprintable characters as
    escapes.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, " ".join(text.split())))


def summary_of(documented: object) -> str:
    """Return the first paragraph of an object's docstring, in one line."""
    return " ".join(cleandoc(documented.__doc__ or "").partition("\n\n")[0].split())


def wrapped(line: str, columns: int) -> list[str]:
    """Return the lines of a terminal of so many columns, which break a line between its words and
    never inside one.
    """
    return wrap(line, columns, break_long_words=False, break_on_hyphens=False) or [""]


def last_part(name: str) -> str:
    """Return the last part of a file's path, and any other name, such as that of a model on a hub,
    as it is.
    """
    is_path = name.startswith(("/", "./", "../", "~/")) or bool(re.match(r"[A-Za-z]:[\\/]", name))
    is_path = is_path or name.lower().endswith((".gguf", ".safetensors", ".bin"))
    return re.split(r"[\\/]", name.rstrip("\\/"))[-1] if is_path else name


def one_line_texts(value: object) -> Any:
    """Return a JSON value with `one_line` applied to all texts in it, including the keys of
    objects.
    """
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(key): one_line_texts(inner) for key, inner in value.items()}
    return [one_line_texts(inner) for inner in value] if isinstance(value, list) else value


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, or the name of its type if there is no
    message.
    """
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else type(error).__name__


def _visible(character: str) -> str:
    # Every kind of blank stays; a character that moves the cursor or turns the writing direction
    # becomes an escape.
    return character if character.isprintable() or character.isspace() else ascii(character)[1:-1]


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet computes as a formula, or skips to reach one."""


CsvCell = str | float | None
"""A cell of a table for other programs; None is an empty one."""
CsvRow = Mapping[str, CsvCell]
"""A row of such a table: its cells by the names of their columns."""


def csv_text(rows: Sequence[CsvRow]) -> str:
    """Return one line per row, below a header with the names of all cells; missing cells stay
    empty.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    text = StringIO()
    writer = csv.DictWriter(text, list(map(_as_text, names)), lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({_as_text(name): _as_text(value) for name, value in row.items()})
    return text.getvalue()


def _as_text(value: CsvCell) -> CsvCell:
    """Return a text that would be a formula with a quote before it, and every other value as it
    is.
    """
    # Names come from files of others: a spreadsheet must not execute them. Negative numbers are no
    # text and stay.
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
