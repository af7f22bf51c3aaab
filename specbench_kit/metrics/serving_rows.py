"""Rows of a summary: their axes, and figures by name. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from typing import Any

Fields = Mapping[str, Any]

AXES = ("devices", "slo", "slo_scale", "estimator_factor", "estimator_noise", "guard_s")
"""What may take several values besides the series; a search for capacity has no devices."""


def varied(rows: Sequence[Fields]) -> list[str]:
    """The axes that take several values."""
    return [axis for axis in AXES if len({row[axis] for row in rows if row.get(axis) is not None}) > 1]


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The value at `a.b.c`; None where something on the way is missing."""
    found: Any = row
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def mean_of(row: Mapping[str, Any], path: str) -> float | None:
    """Of an estimate."""
    found: float | None = look_up(row, f"{path}.mean")
    return found
