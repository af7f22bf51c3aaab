"""How many times as fast a method is on a typical prompt.

The estimate is that of Hodges and Lehmann: the median of the means of all pairs of units'
logarithmic ratios, beside Wilcoxon's signed ranks. A unit that the machine disturbed is one of
many, however long it took.

What lasts as long as a process, such as where its memory lies, favours a method in all of its
requests: more prompts do not show it, and only further processes do. So differences are also held
against how far apart processes are.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil, erfc, exp, inf, log, sqrt
from statistics import NormalDist

import numpy as np

from specbench_kit.metrics.statistics import (
    FEWEST_UNITS,
    LEVEL,
    NO_WIDTH,
    Array,
    Interval,
    range_of_equals,
    student,
)

MOST_UNITS = 1000
"""Units up to which every pair counts, chances are exact and all units are drawn; of more, a part
stands for all.
"""


@dataclass(frozen=True, slots=True)
class Typical:
    """The typical ratio over units: `pair_means` are the sorted means of pairs of their logarithms.

    They are all pairs, or of many units as many random ones as `MOST_UNITS` have.
    """

    units: int
    pair_means: Array

    @classmethod
    def of(cls, logs: Array) -> "Typical | None":
        """Return the typical ratio of units with these logarithmic ratios; None without a unit."""
        if not len(logs):
            return None
        if len(logs) > MOST_UNITS:
            first, second = np.random.default_rng(0).integers(
                len(logs), size=(2, MOST_UNITS * (MOST_UNITS + 1) // 2)
            )
        else:
            first, second = np.triu_indices(len(logs))
        return cls(len(logs), np.sort((logs[first] + logs[second]) / 2))

    @property
    def value(self) -> float:
        """The ratio, by the median of the means of pairs."""
        return exp(float(np.median(self.pair_means)))

    @property
    def deviation(self) -> float:
        """The distance of the sum of positive ranks from that of equal sides, in its standard
        errors.
        """
        above = (self.pair_means > NO_WIDTH).sum() + 0.5 * (
            np.abs(self.pair_means) <= NO_WIDTH
        ).sum()
        # The factor is exactly 1 where all pairs are there, so that equal sums have equal
        # deviations.
        all_above = above * (self._pairs / len(self.pair_means))
        return float((all_above - self._pairs / 2) / spread_of_ranks(self.units))

    @property
    def _pairs(self) -> float:
        return self.units * (self.units + 1) / 2

    @property
    def is_constant(self) -> bool:
        """Whether all units have the same ratio."""
        return bool(self.pair_means[-1] - self.pair_means[0] <= NO_WIDTH)

    @property
    def standard_error(self) -> float | None:
        """The standard error of the logarithm, by the width of its 95 % interval; None for too few
        units.
        """
        if self.is_constant:
            return 0.0
        bounds = self.interval()
        return log(bounds[1] / bounds[0]) / 2 / limit_of_one(self.units) if bounds else None

    def upper_bound(self) -> float | None:
        """Return what the ratio is below, with a confidence of 95 %; None for too few units."""
        if self.is_constant:
            return self.value
        bounds = self.interval(limit_of_one(self.units, 2 * LEVEL - 1))
        return bounds[1] if bounds else None

    def interval(self, limit: float | None = None) -> Interval | None:
        """Return the interval that holds 1 unless `deviation` exceeds the limit, by default that of
        a 95 % interval.

        None if all units agree, or if they are too few.
        """
        limit = limit_of_one(self.units) if limit is None else limit
        # Rounded, since a deviation that equals the limit does not exceed it.
        outside = ceil(round(self._pairs / 2 - limit * spread_of_ranks(self.units), 6)) - 1
        if self.units > MOST_UNITS:
            outside = int(outside / self._pairs * len(self.pair_means))
        if outside < 0 or self.units < FEWEST_UNITS or self.is_constant:
            return None
        return [exp(float(self.pair_means[outside])), exp(float(self.pair_means[-1 - outside]))]


def spread_of_ranks(units: int) -> float:
    """Return the standard deviation of the sum of positive ranks where either side is as likely to
    be faster.
    """
    return sqrt(units * (units + 1) * (2 * units + 1) / 24)


@cache
def limit_of_one(units: int, level: float = LEVEL) -> float:
    """Return the deviation that a single comparison of equal sides exceeds in at most 5 % of cases.

    Another `level` than 95 % has another limit.
    """
    if units > MOST_UNITS:
        return NormalDist().inv_cdf((1 + level) / 2)
    chances = np.ones(1)
    for rank in range(1, units + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    outside = int(np.searchsorted(np.cumsum(chances), (1 - level) / 2, side="right"))
    # Deviations of the sums below `outside` exceed this; the deviation of `outside` itself does
    # not.
    return (units * (units + 1) / 4 - outside) / spread_of_ranks(units)


LASTING = 0.005
"""Standard deviation of the share by which one process makes a method faster or slower in all of
its requests.

It is about what one method under eight names shows in single runs on quiet machines
(`benchmarks/same_method.py`).
"""


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """The variance of one method's logarithmic speed over processes, beyond what all methods share.

    It is the mean square of method x process in a mixed model with fixed methods and random processes, which is the
    error of a comparison of two methods there. All methods give it together: with the methods of a table there are
    `freedom` degrees of freedom, where two methods alone have one less than there are processes. `methods` is the
    number of those that a table compares with each other. One process shows nothing of it, so that it is `assumed`.
    """

    variance: float
    freedom: float
    processes: int
    methods: int = 2

    @classmethod
    def of(cls, logs: Array, *, apart: bool = False) -> "ProcessSpread | None":
        """Return the spread of logarithmic speeds [methods, processes, units], nan where nothing
        was timed.

        None for one process, or with too few units that all processes have timed with all methods.
        Set `apart` for methods that ran in processes of their own, which have nothing in common.
        """
        methods, processes = logs.shape[:2]
        whole = np.isfinite(logs).all(axis=(0, 1))
        freedom = (methods - (not apart)) * (processes - 1)
        if not freedom or whole.sum() < FEWEST_UNITS:
            return None
        speeds = np.apply_along_axis(typical_log, 2, logs[:, :, whole])
        residuals = speeds - speeds.mean(axis=1, keepdims=True)
        if not apart:
            residuals -= residuals.mean(axis=0)
        return cls(
            float((residuals**2).sum()) / freedom, freedom, processes, max(2, methods - (not apart))
        )

    @classmethod
    def assumed(cls, methods: int, *, apart: bool = False) -> "ProcessSpread":
        """Return the spread that one process is taken to have, which it cannot show."""
        # Methods that ran apart differ by what both processes did to them, and to their baselines.
        return cls(LASTING**2 * (1 + apart), inf, 1, max(2, methods - (not apart)))

    @property
    def is_seen(self) -> bool:
        """Whether several processes have shown it."""
        return self.processes > 1

    def half_width(self, limit: float | None = None) -> float:
        """Return half the width of the interval of two methods' logarithmic ratio, by default a 95
        % interval.

        `limit` are the standard errors beyond which a table's differences are shown. It follows from how prompts
        differ; what lasts as long as a process is the same for all prompts, and makes a method that is no better the
        fastest on all of them, so that a table allows for the range of so many methods.
        """
        width = student(level_of(limit), self.freedom)
        if limit is not None:
            width = max(width, range_of_equals(LEVEL, self.methods, self.freedom))
        return width * self.standard_error

    @property
    def standard_error(self) -> float:
        """The standard error of two methods' logarithmic ratio."""
        return sqrt(2 * self.variance / self.processes)

    def widen(self, value: float, bounds: Interval, limit: float | None = None) -> Interval:
        """Return the interval of a ratio of two methods with the half width over processes added in
        quadrature.
        """
        half_width = self.half_width(limit)
        below = sqrt(log(value / bounds[0]) ** 2 + half_width**2)
        above = sqrt(log(bounds[1] / value) ** 2 + half_width**2)
        return [value * exp(-below), value * exp(above)]


def typical_log(logs: Array) -> float:
    """Return the typical logarithm of the units that have one, nan standing for others; 0 if none
    has.
    """
    typical = Typical.of(logs[np.isfinite(logs)])
    return log(typical.value) if typical else 0.0


def level_of(limit: float | None) -> float:
    """Return the level of intervals that show what exceeds `limit` standard errors; at least, and
    by default, 95 %.
    """
    return LEVEL if limit is None else max(LEVEL, 1 - erfc(limit / sqrt(2)))
