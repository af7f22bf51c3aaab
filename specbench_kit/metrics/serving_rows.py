"""Rows of a serving summary: their axes, and figures by dotted name. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from specbench_kit.core.typed_json import JsonObject


class Interval(Struct, frozen=True):
    """A mean over seeds with its 95% interval, which neither a single seed nor a figure derived from others has."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Return both ends of the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


AXES = ("devices", "slo", "slo_scale", "estimator_factor", "estimator_noise", "guard_s")
"""Settings besides the series that may take several values; a search for capacity has no devices."""

FEWEST_SEEDS = 5
"""Seeds below which no verdict between systems is given."""


def varied(rows: Sequence[JsonObject]) -> list[str]:
    """Return the axes that take several values."""
    return [axis for axis in AXES if len({row[axis] for row in rows if row.get(axis) is not None}) > 1]


def look_up(row: JsonObject, path: str) -> Any:
    """Return the value at `a.b.c`; None if a part of the path is missing."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def mean_of(row: JsonObject, path: str) -> float | None:
    """Return the mean of the estimate at `path`."""
    mean: float | None = look_up(row, f"{path}.mean")
    return mean
