"""Ratios of sums over units, their intervals, and the level at which a table's intervals hold together.

A unit is what varies independently: a prompt with its repeats, or the requests of a batch (`units.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, isfinite, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Interval = list[float]

LEVEL = 0.95
FEWEST_UNITS = 6
"""Fewer units cannot show a difference with 95% confidence even if all of them agree (2 x 0.5^5 > 5%)."""
NO_WIDTH = 1e-9
"""Relative width up to which an interval is due to rounding; no interval is given then."""
DRAWS = 6000
"""Random draws from which the level of a family of intervals is estimated."""


def ratio_of_sums(numerator: float, denominator: float) -> float | None:
    """Return the ratio; None if the denominator is zero or either side is unknown."""
    return float(numerator / denominator) if denominator and isfinite(numerator) and isfinite(denominator) else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A product of ratios of sums over the same units.

    `residuals` [units] are what each unit adds to the logarithm, without itself in the sums; `freedom` is the number of
    degrees of freedom of their variance, the effective number of units less one.
    """

    value: float
    residuals: Array
    units: int
    freedom: float

    @classmethod
    def of(cls, numerators: Sequence[ArrayLike], denominators: Sequence[ArrayLike]) -> "Ratio | None":
        """Return the product of the sums of `numerators` over that of `denominators`, each [units].

        None if one of the sums is not a positive number.
        """
        columns = [np.asarray(column, dtype=np.float64) for column in (*numerators, *denominators)]
        sums = [float(column.sum()) for column in columns]
        if not all(isfinite(total) and total > 0 for total in sums):
            return None
        signs = [1] * len(numerators) + [-1] * len(denominators)
        value = exp(sum(sign * log(total) for sign, total in zip(signs, sums, strict=True)))
        shares = [column / total for column, total in zip(columns, sums, strict=True)]
        weight: Array = np.mean(shares, axis=0)
        change: Array = np.sum([sign * share for sign, share in zip(signs, shares, strict=True)], axis=0)
        # Divided by the weight without the unit: a long prompt pulls the ratio towards itself, which makes its own
        # deviation look too small.
        remainder = np.maximum(1 - weight, NO_WIDTH)
        return cls(value, change / remainder, int((weight > 0).sum()), max(1.0, 1 / float((weight**2).sum()) - 1))

    @property
    def standard_error(self) -> float:
        """The standard error of the ratio's logarithm."""
        return sqrt(float((self.residuals**2).sum()))

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Return Student's t interval of the linearised logarithm; None for too few units, or if it has no width."""
        if self.units < FEWEST_UNITS:
            return None
        half = student(level, self.freedom) * self.standard_error
        # exp(700) is about the largest floating-point number.
        return [self.value * exp(-half), self.value * exp(half)] if NO_WIDTH < half < 700 else None


def interval_of_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = LEVEL) -> Interval | None:
    """Return the interval of sum(numerator) / sum(denominator) over units."""
    ratio = Ratio.of([numerator], [denominator])
    return ratio.interval(level) if ratio else None


def interval_of_estimate(value: float, without_unit: Array, weight: Array, level: float = LEVEL) -> Interval | None:
    """Return the jackknife interval of any function of sums over units.

    `without_unit` [units] is the function without each unit, `weight` [units] each unit's part in the sums.
    """
    units = int((weight > 0).sum())
    if units < FEWEST_UNITS or not np.isfinite(without_unit).all():
        return None
    freedom = max(1.0, float(weight.sum() ** 2 / (weight**2).sum()) - 1)
    half = student(level, freedom) * sqrt(float(((without_unit - value) ** 2).sum()))
    return [value - half, value + half] if half > NO_WIDTH * abs(value) else None


def interval_of_resplits(
    ratios: Sequence[float], test_share: float, level: float = LEVEL
) -> dict[str, float | Interval | None]:
    """Return the geometric mean of ratios from several random splits of the same units, and its interval.

    The splits share units, so that their spread alone is too narrow: corrected resampled t, Nadeau and Bengio 2003.
    Fewer than three splits, or ratios without spread, give no interval.
    """
    logs = np.log(ratios)
    value, count = float(np.exp(logs.mean())), len(ratios)
    spread = float(logs.var(ddof=1)) if count > 2 else 0.0
    half = student(level, count - 1) * sqrt((1 / count + test_share / (1 - test_share)) * spread) if spread else 0.0
    return {"value": value, "interval": [value * exp(-half), value * exp(half)] if half > NO_WIDTH else None}


def student(level: float, freedom: float) -> float:
    """Return the number of standard errors to either side that hold the central `level` of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


@dataclass(frozen=True, slots=True)
class ComparisonFamily:
    """The comparisons of one table: every method with its own baseline, and with the reference.

    `speeds` [units, methods] are residuals of the methods' logarithmic speeds, and `machines` those of their baselines
    if the baselines differ. The reference is the fastest of the `candidates`, chosen anew in every draw; a single
    candidate was fixed in advance, and without any the methods are compared with their baselines alone. `freedom` is
    the number of degrees of freedom of the methods' ratios.
    """

    speeds: Array
    candidates: Sequence[int]
    has_baseline: Sequence[bool]
    freedom: float
    machines: Array | None = None

    def level(self, level: float = LEVEL, seed: int = 0) -> float:
        """Return the level of each interval at which all of them hold jointly with probability `level` (max-T)."""
        pairs = self.speeds.shape[1] - 1 if self.candidates else 0
        comparisons = sum(self.has_baseline) + pairs * (1 if self.machines is None else 2)
        if comparisons <= 1:
            return level
        methods = self.speeds.shape[1]
        residuals = self.speeds if self.machines is None else np.column_stack([self.speeds, self.machines])
        # Rows of independent noise shrink the correlations, which few units show even if there are none.
        share = 1 / (self.freedom + 1)
        independent = np.diag(np.sqrt(share * (residuals**2).sum(axis=0)))
        table = np.concatenate([sqrt(1 - share) * residuals, independent])
        rng = np.random.default_rng(seed)
        # Sums of the residuals times independent normal numbers, drawn through a root of their covariance.
        draws = rng.standard_normal((DRAWS, min(table.shape))) @ np.linalg.qr(table, mode="r")
        largest = np.zeros(DRAWS)
        if any(self.has_baseline):
            own = np.flatnonzero(self.has_baseline)
            own_spread = np.sqrt((table[:, own] ** 2).sum(axis=0))
            largest = _scaled(np.abs(draws[:, own]), own_spread).max(axis=1)
        if self.candidates:
            candidates = np.asarray(self.candidates)
            reference = candidates[draws[:, candidates].argmax(axis=1)]
            largest = np.maximum(largest, _largest(draws[:, :methods], _spreads(table[:, :methods]), reference))
            if self.machines is not None:
                largest = np.maximum(largest, _largest(draws[:, methods:], _spreads(table[:, methods:]), reference))
        return max(level, 1 - erfc(float(np.quantile(largest, level)) / sqrt(2)))


def _spreads(residuals: Array) -> Array:
    """Return the standard errors of the differences between columns: [units, methods] -> [methods, methods]."""
    squares = [((residuals - column[:, None]) ** 2).sum(axis=0) for column in residuals.T]
    return np.asarray(np.sqrt(np.stack(squares)), dtype=np.float64)


def _largest(draws: Array, spread: Array, reference: NDArray[np.int64]) -> Array:
    """Return [draws]: the largest distance of a column from the reference's, in standard errors of their difference."""
    rows = np.arange(len(draws))
    distance = np.abs(draws - draws[rows, reference][:, None])
    return np.asarray(_scaled(distance, spread[reference]).max(axis=1), dtype=np.float64)


def _scaled(values: Array, spread: Array) -> Array:
    """Return the values in units of the spread; 0 where there is no spread, as between a run and its copy."""
    has_spread = np.broadcast_to(spread > NO_WIDTH, values.shape)
    scaled: Array = np.divide(values, spread, out=np.zeros_like(values), where=has_spread)
    return scaled
