"""Figures of several seeds as one: their mean with a 95% interval of Student's t."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

from specbench_kit.metrics.statistics import LEVEL, student


class SeedEstimate(NamedTuple):
    """A mean over seeds with its 95% interval, which a single seed does not have."""

    mean: float
    low: float | None = None
    high: float | None = None

    def describe(self) -> dict[str, float | None]:
        """Return the estimate as files hold it."""
        return self._asdict()


def estimate(values: Sequence[float], least: float | None = None, most: float | None = None) -> SeedEstimate:
    """Return the mean over seeds with its interval, cut at the bounds `least` and `most` of the quantity."""
    mean = fmean(values)
    if len(values) < 2:
        return SeedEstimate(mean)
    half = student(LEVEL, len(values) - 1) * stdev(values) / sqrt(len(values))
    low, high = mean - half, mean + half
    return SeedEstimate(mean, low if least is None else max(least, low), high if most is None else min(most, high))


def over_seeds(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the same tree of figures as each seed's, with an estimate at every number.

    A seed without a value for a figure is left out of that figure.
    """
    return {name: _joined(name, [tree[name] for tree in trees]) for name in trees[0]}


def _joined(name: str, values: Sequence[Any]) -> Any:
    present = [value for value in values if value is not None]
    if not present:
        return None
    first = present[0]
    if isinstance(first, Mapping):
        return over_seeds(present)
    if isinstance(first, bool):
        return all(present)
    if isinstance(first, int | float):
        most = 1.0 if name.endswith("_rate") or name == "utilisation" else None
        return estimate([float(value) for value in present], 0.0, most).describe()
    return first
