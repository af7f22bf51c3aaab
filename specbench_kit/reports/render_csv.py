"""Tables for other programs, as CSV."""

from collections.abc import Mapping, Sequence

from specbench_kit.core.plain_text import csv_text

DIGITS = 9
"""Significant digits: beyond them, processors differ in how they add up."""


def render(records: Sequence[Mapping[str, object]]) -> str:
    """Return one line per record under the names of all their fields; what has no value is left empty."""
    return csv_text(
        [
            {name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for name, value in row.items()}
            for row in records
        ]
    )
