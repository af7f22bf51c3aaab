"""Tables for other programs."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would compute, or skip to find such."""


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line per row under the names of all their cells; what has no value is left empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    text = StringIO()
    writer = csv.DictWriter(text, list(map(_inert, names)), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({_inert(name): _inert(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _inert(value: Any) -> Any:
    """A cell that begins no formula; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
