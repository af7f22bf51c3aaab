"""Figures of several seeds as one: their mean with a 95% interval of Student's t."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from specbench_kit.core.typed_json import JsonObject
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
    low = mean - half
    high = mean + half
    return SeedEstimate(mean, low if least is None else max(least, low), high if most is None else min(most, high))


def over_seeds(trees: Sequence[JsonObject]) -> dict[str, object]:
    """Return the same tree of figures as each seed's, with an estimate at every number.

    A seed without a value for a figure is left out of that figure.
    """
    joined: dict[str, object] = {}
    for name in trees[0]:
        values = [tree[name] for tree in trees if tree[name] is not None]
        if not values:
            joined[name] = None
        elif isinstance(values[0], Mapping):
            joined[name] = over_seeds(values)
        elif isinstance(values[0], bool):
            joined[name] = all(values)
        elif isinstance(values[0], int | float):
            upper = 1.0 if name.endswith("_rate") or name == "utilisation" else None
            joined[name] = estimate([float(value) for value in values], 0.0, upper).describe()
        else:
            joined[name] = values[0]
    return joined
