"""Where a method stops, or starts, to beat centralised autoregressive serving."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Verdict = Literal["everywhere", "nowhere", "in part"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Between two neighbours on the grid the speedup passes 1: at `at`, if it goes in a straight line."""

    low: float
    high: float
    at: float
    stops: bool
    """Whether the method is faster below it, and not above."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Whether a method is faster over the range of an axis, and where that changes."""

    verdict: Verdict
    crossings: tuple[Crossing, ...]


def break_even(values: Sequence[float], speedups: Sequence[float]) -> BreakEven:
    """A speedup of exactly 1 beats nothing."""
    grid = sorted(zip(values, speedups, strict=True))
    ahead = [speedup > 1 for _, speedup in grid]
    if all(ahead) or not any(ahead):
        return BreakEven("everywhere" if all(ahead) else "nowhere", ())
    return BreakEven("in part", tuple(_cross(a, b) for a, b in pairwise(grid) if (a[1] > 1) != (b[1] > 1)))


def _cross(a: tuple[float, float], b: tuple[float, float]) -> Crossing:
    (low, before), (high, after) = a, b
    return Crossing(low, high, low + (high - low) * (before - 1) / (before - after), stops=before > 1)
