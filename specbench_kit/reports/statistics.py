"""Paired bootstrap: requests are drawn with replacement, each with both of its sides."""

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = list[float]
RESAMPLES = 2000
LEVEL = 0.95


def ratio_of_sums(numerator: float, denominator: float) -> float | None:
    """The ratio, or None where the denominator is zero or either side is unknown."""
    return float(numerator / denominator) if denominator and isfinite(numerator) and isfinite(denominator) else None


def resampled_sums(columns: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> NDArray[np.float64]:
    """Column sums of `resamples` bootstrap samples of the rows: (rows, columns) -> (resamples, columns).

    All columns see the same rows in each sample, which keeps them paired.
    """
    values = np.asarray(columns, dtype=np.float64)
    rows = len(values)
    rng = np.random.default_rng(seed)
    # One sample at a time: memory stays at O(rows) for any number of resamples. No matrix product: its last bits
    # differ between processors.
    return np.stack([values[rng.integers(rows, size=rows)].sum(axis=0) for _ in range(resamples)])


def interval_of_ratio(numerator: NDArray[Any], denominator: NDArray[Any], level: float = LEVEL) -> Interval | None:
    """Percentile interval of resampled sums' ratio; samples with a zero denominator or an unknown side have none."""
    defined = (denominator != 0) & np.isfinite(numerator) & np.isfinite(denominator)
    return percentile_interval(numerator[defined] / denominator[defined], level)


def percentile_interval(samples: NDArray[Any], level: float = LEVEL) -> Interval | None:
    """The central `level` of the samples, or None where there are none."""
    if not len(samples):
        return None
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]


def bootstrap_ratio(
    numerator: ArrayLike, denominator: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Interval of sum(numerator) / sum(denominator) over pairs; None for fewer than two pairs."""
    columns = np.column_stack([numerator, denominator])
    if len(columns) < 2:
        return None
    sums = resampled_sums(columns, resamples=resamples, seed=seed)
    return interval_of_ratio(sums[:, 0], sums[:, 1], level)


def bootstrap_difference(
    left: ArrayLike, right: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Interval of mean(left - right) over pairs; None for fewer than two pairs."""
    columns = np.column_stack([left, right])
    if len(columns) < 2:
        return None
    sums = resampled_sums(columns, resamples=resamples, seed=seed)
    return percentile_interval((sums[:, 0] - sums[:, 1]) / len(columns), level)
