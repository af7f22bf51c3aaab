"""Points at which a method stops, or starts, to be faster than autoregressive decoding at the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

FasterRange = Literal["everywhere", "nowhere", "in part"]
"""The part of an axis on which a method is faster."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """The speedup passes 1 between two neighbours on the grid, at `at` by linear interpolation.

    `stops` is True if the method is faster below and slower above the crossing.
    """

    low: float
    high: float
    at: float
    stops: bool


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The part of an axis on which a method is faster, and the crossings in between."""

    verdict: FasterRange
    crossings: tuple[Crossing, ...]


def break_even(values: Sequence[float], speedups: Sequence[float]) -> BreakEven:
    """Return where the speedups along an axis are above 1; exactly 1 is not faster."""
    grid = sorted(zip(values, speedups, strict=True))
    faster = [speedup > 1 for _, speedup in grid]
    if all(faster) or not any(faster):
        return BreakEven("everywhere" if all(faster) else "nowhere", ())
    crossings = [
        Crossing(low, high, low + (high - low) * (before - 1) / (before - after), stops=before > 1)
        for (low, before), (high, after) in pairwise(grid)
        if (before > 1) != (after > 1)
    ]
    return BreakEven("in part", tuple(crossings))
