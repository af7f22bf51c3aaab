"""Ratios of sums over units, their intervals, and the level at which a table's intervals hold together.

A unit is what varies by itself: a prompt with its repeats, or the requests of a batch (`units.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, isfinite, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Interval = list[float]

LEVEL = 0.95
FEWEST_UNITS = 6
"""Fewer cannot show a difference with 95% confidence even if every one of them goes the same way (2 x 0.5^5 > 5%)."""
NO_WIDTH = 1e-9
"""Relative width up to which an interval is rounding, and none is given."""
DRAWS = 6000


def ratio_of_sums(numerator: float, denominator: float) -> float | None:
    """The ratio, or None where the denominator is zero or either side is unknown."""
    return float(numerator / denominator) if denominator and isfinite(numerator) and isfinite(denominator) else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A product of ratios of sums over the same units.

    `residuals` [units] are what each unit adds to the logarithm, without itself in the sums; `freedom` are the degrees
    of freedom of their variance, the effective number of units less one.
    """

    value: float
    residuals: Array
    units: int
    freedom: float

    @classmethod
    def of(cls, tops: Sequence[ArrayLike], bases: Sequence[ArrayLike]) -> "Ratio | None":
        """Product of the sums of `tops` over that of `bases`, each [units]; None where one of them is no number > 0."""
        columns = [np.asarray(column, dtype=np.float64) for column in (*tops, *bases)]
        sums = [float(column.sum()) for column in columns]
        if not all(isfinite(total) and total > 0 for total in sums):
            return None
        signs = [1] * len(tops) + [-1] * len(bases)
        value = exp(sum(sign * log(total) for sign, total in zip(signs, sums, strict=True)))
        shares = [column / total for column, total in zip(columns, sums, strict=True)]
        weight: Array = np.mean(shares, axis=0)
        change: Array = np.sum([sign * share for sign, share in zip(signs, shares, strict=True)], axis=0)
        # Over what is left without the unit: a long prompt pulls the ratio towards itself, which looks too good.
        rest = np.maximum(1 - weight, NO_WIDTH)
        return cls(value, change / rest, int((weight > 0).sum()), max(1.0, 1 / float((weight**2).sum()) - 1))

    @property
    def standard_error(self) -> float:
        """Of the logarithm."""
        return sqrt(float((self.residuals**2).sum()))

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Student's t interval of the linearised logarithm; None for too few units, and where it has no width."""
        if self.units < FEWEST_UNITS:
            return None
        half = student(level, self.freedom) * self.standard_error
        # exp(700) is about the largest number there is.
        return [self.value * exp(-half), self.value * exp(half)] if NO_WIDTH < half < 700 else None


def interval_of_ratio(numerator: ArrayLike, denominator: ArrayLike, level: float = LEVEL) -> Interval | None:
    """Interval of sum(numerator) / sum(denominator) over units."""
    found = Ratio.of([numerator], [denominator])
    return found.interval(level) if found else None


def interval_of_estimate(value: float, without_one: Array, weight: Array, level: float = LEVEL) -> Interval | None:
    """Jackknife interval of any function of sums over units.

    `without_one` [units] is the function without each unit, `weight` [units] each one's part in the sums.
    """
    units = int((weight > 0).sum())
    if units < FEWEST_UNITS or not np.isfinite(without_one).all():
        return None
    freedom = max(1.0, float(weight.sum() ** 2 / (weight**2).sum()) - 1)
    half = student(level, freedom) * sqrt(float(((without_one - value) ** 2).sum()))
    return [value - half, value + half] if half > NO_WIDTH * abs(value) else None


def interval_of_resplits(ratios: Sequence[float], test_share: float, level: float = LEVEL) -> dict[str, Any]:
    """Geometric mean of ratios from several random splits of the same units, and its interval.

    The splits share units, so that their spread alone is too narrow: Nadeau and Bengio 2003, corrected resampled t.
    Fewer than three splits, or ratios without spread, give no interval.
    """
    logs = np.log(ratios)
    value, count = float(np.exp(logs.mean())), len(ratios)
    spread = float(logs.var(ddof=1)) if count > 2 else 0.0
    half = student(level, count - 1) * sqrt((1 / count + test_share / (1 - test_share)) * spread) if spread else 0.0
    return {"value": value, "interval": [value * exp(-half), value * exp(half)] if half > NO_WIDTH else None}


def student(level: float, freedom: float) -> float:
    """How many standard errors to either side hold the central `level` of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


@dataclass(frozen=True, slots=True)
class ComparisonFamily:
    """The comparisons of one table: every method with its own baseline, and with the reference.

    `speeds` [units, methods] are residuals of the methods' logarithmic speeds, and `machines` those of their baselines'
    where these differ. The reference is the fastest of the `candidates`, in every draw anew; a single candidate was
    fixed beforehand. `freedom` is that of the methods' ratios.
    """

    speeds: Array
    candidates: Sequence[int]
    has_baseline: Sequence[bool]
    freedom: float
    machines: Array | None = None

    def level(self, level: float = LEVEL, seed: int = 0) -> float:
        """The level of each interval at which all of the family hold together with probability `level` (max-T)."""
        if self._comparisons() <= 1:
            return level
        methods = self.speeds.shape[1]
        table = _shrunk(
            self.speeds if self.machines is None else np.column_stack([self.speeds, self.machines]),
            1 / (self.freedom + 1),
        )
        rng = np.random.default_rng(seed)
        # Sums of the residuals times independent normal numbers, by way of a root of their covariance.
        draws = rng.standard_normal((DRAWS, min(table.shape))) @ np.linalg.qr(table, mode="r")
        spread = _spreads(table[:, :methods])
        candidates = np.asarray(self.candidates)
        reference = candidates[draws[:, candidates].argmax(axis=1)]
        largest = _largest(draws[:, :methods], spread, reference)
        if any(self.has_baseline):
            own = np.flatnonzero(self.has_baseline)
            alone = np.sqrt((table[:, own] ** 2).sum(axis=0))
            largest = np.maximum(largest, _over(np.abs(draws[:, own]), alone).max(axis=1))
        if self.machines is not None:
            largest = np.maximum(largest, _largest(draws[:, methods:], _spreads(table[:, methods:]), reference))
        return max(level, 1 - erfc(float(np.quantile(largest, level)) / sqrt(2)))

    def _comparisons(self) -> int:
        """How many there are at most, where that is one or two methods'."""
        pairs = self.speeds.shape[1] - 1 if self.candidates else 0
        return sum(self.has_baseline) + pairs * (1 if self.machines is None else 2)


def _shrunk(table: Array, share: float) -> Array:
    """The table with rows that take a share off the correlations: few units show some where there are none."""
    alone = np.sqrt(share * (table**2).sum(axis=0))
    return np.concatenate([sqrt(1 - share) * table, np.diag(alone)])


def _spreads(residuals: Array) -> Array:
    """Standard errors of the differences between columns: [units, methods] -> [methods, methods]."""
    squares = [((residuals - one[:, None]) ** 2).sum(axis=0) for one in residuals.T]
    return np.asarray(np.sqrt(np.stack(squares)), dtype=np.float64)


def _largest(draws: Array, spread: Array, reference: NDArray[np.int64]) -> Array:
    """[draws]: how far the column farthest from the reference's is, in standard errors of their difference."""
    rows = np.arange(len(draws))
    apart = np.abs(draws - draws[rows, reference][:, None])
    return np.asarray(_over(apart, spread[reference]).max(axis=1), dtype=np.float64)


def _over(values: Array, spread: Array) -> Array:
    """In units of the spread; 0 where there is none, as between a run and its copy."""
    known = np.broadcast_to(spread > NO_WIDTH, values.shape)
    found: Array = np.divide(values, spread, out=np.zeros_like(values), where=known)
    return found
