"""CSV for spreadsheets and other programs."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet computes as a formula, or skips to reach one."""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return one line per row, below a header with the names of all cells; missing cells stay empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    text = StringIO()
    writer = csv.DictWriter(text, list(map(_as_text, names)), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({_as_text(name): _as_text(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _as_text(value: object) -> object:
    """Return a text that would be a formula with a quote before it, and every other value as it is."""
    # Names come from files of others: a spreadsheet must not execute them. Negative numbers are no text and stay.
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
