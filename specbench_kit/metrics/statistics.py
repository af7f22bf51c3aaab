"""Ratios of sums over units, their intervals, and the level at which a table's intervals hold together.

A unit is what varies independently: a prompt with its repeats, or the requests of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import erfc, exp, isfinite, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.decoding.records import RequestRecord

Units = Mapping[str, int]
"""The number of each request's unit, by the request's id."""


def units_of(records: Sequence[RequestRecord], batch_size: int = 1, first: int = 0) -> dict[str, int]:
    """Return units of `batch_size` requests that were admitted one after the other, numbered from `first`.

    Requests of one batch share the time of every forward, so that a slow moment affects all of them.
    """
    admitted_s: dict[str, float] = {}
    for record in records:
        start_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
        admitted_s[record.request_id] = min(start_s, admitted_s.get(record.request_id, start_s))
    names = list(admitted_s)
    # Another tool may not record times: then its requests are taken in the order of their records.
    if all(record.finished_s is not None for record in records if record.finish_reason != "error"):
        names.sort(key=admitted_s.__getitem__)
    return {name: first + position // max(1, batch_size) for position, name in enumerate(names)}


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
) -> tuple[float, Interval | None]:
    """Return the geometric mean of ratios from several random splits of the same units, and its interval.

    The splits share units, so that their spread alone is too narrow: corrected resampled t, Nadeau and Bengio 2003.
    Fewer than three splits, or ratios without spread, give no interval.
    """
    logs = np.log(ratios)
    value = float(np.exp(logs.mean()))
    count = len(ratios)
    spread = float(logs.var(ddof=1)) if count > 2 else 0.0
    half = student(level, count - 1) * sqrt((1 / count + test_share / (1 - test_share)) * spread) if spread else 0.0
    return value, [value * exp(-half), value * exp(half)] if half > NO_WIDTH else None


def student(level: float, freedom: float) -> float:
    """Return the number of standard errors to either side that hold the central `level` of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


@cache
def range_of_equals(level: float, methods: int, freedom: float) -> float:
    """Return the standard errors within which the largest difference between equal methods lies with this probability.

    It is Tukey's studentized range, in standard errors of a difference: that of two methods is Student's t.
    """
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(level, methods, freedom)) / sqrt(2)


def simultaneous_level(residuals: Array, freedom: float, level: float = LEVEL, seed: int = 0) -> float:
    """Return the level of each interval at which all of them hold jointly with probability `level` (max-T).

    `residuals` [units, ratios] are those of the ratios, and `freedom` is their number of degrees of freedom.
    """
    if residuals.shape[1] <= 1:
        return level
    # Rows of independent noise shrink the correlations, which few units show even if there are none.
    share = 1 / (freedom + 1)
    independent = np.diag(np.sqrt(share * (residuals**2).sum(axis=0)))
    table = np.concatenate([sqrt(1 - share) * residuals, independent])
    # Sums of the residuals times independent normal numbers, drawn through a root of their covariance.
    draws = np.random.default_rng(seed).standard_normal((DRAWS, min(table.shape))) @ np.linalg.qr(table, mode="r")
    spread = np.sqrt((table**2).sum(axis=0))
    # A ratio of a run and its copy has no spread.
    scaled = np.divide(np.abs(draws), spread, out=np.zeros_like(draws), where=spread > NO_WIDTH)
    return max(level, 1 - erfc(float(np.quantile(scaled.max(axis=1), level)) / sqrt(2)))
