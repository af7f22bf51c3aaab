"""How many times as fast a method is on a typical prompt, and which differences of a whole table are shown.

The estimate is that of Hodges and Lehmann: the median of the means of all pairs of units' logarithmic ratios, beside
Wilcoxon's signed ranks. A unit that the machine disturbed is one of many, however long it took.

What lasts as long as a process, such as where its memory lies, favours a method in all of its requests: more prompts
do not show it, and only further processes do. So differences are also held against how far apart processes are.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, erfc, exp, inf, log, sqrt
from statistics import NormalDist

import numpy as np

from specbench_kit.metrics.statistics import FEWEST_UNITS, LEVEL, NO_WIDTH, Array, Interval, range_of_equals, student

SHUFFLES = 1000
"""Random orders of the methods from which the largest deviation of equal methods is taken."""
AT_ONCE = 4_000_000
"""Numbers that are shuffled at once, which bounds the memory."""
MOST_UNITS = 1000
"""Units up to which every pair counts, chances are exact and all times are shuffled; of more, a part stands for all."""


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
            first, second = np.random.default_rng(0).integers(len(logs), size=(2, MOST_UNITS * (MOST_UNITS + 1) // 2))
        else:
            first, second = np.triu_indices(len(logs))
        return cls(len(logs), np.sort((logs[first] + logs[second]) / 2))

    @property
    def value(self) -> float:
        """The ratio, by the median of the means of pairs."""
        return exp(float(np.median(self.pair_means)))

    @property
    def deviation(self) -> float:
        """The distance of the sum of positive ranks from that of equal sides, in its standard errors."""
        above = (self.pair_means > NO_WIDTH).sum() + 0.5 * (np.abs(self.pair_means) <= NO_WIDTH).sum()
        # The factor is exactly 1 where all pairs are there, so that equal sums have equal deviations.
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
        """The standard error of the logarithm, by the width of its 95 % interval; None for too few units."""
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
        """Return the interval that holds 1 unless `deviation` exceeds the limit, by default that of a 95 % interval.

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
    """Return the standard deviation of the sum of positive ranks where either side is as likely to be faster."""
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
    # Deviations of the sums below `outside` exceed this; the deviation of `outside` itself does not.
    return (units * (units + 1) / 4 - outside) / spread_of_ranks(units)


LASTING = 0.005
"""Standard deviation of the share by which one process makes a method faster or slower in all of its requests.

It is about what one method under eight names shows in single runs on quiet machines (`benchmarks/same_method.py`).
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
        """Return the spread of logarithmic speeds [methods, processes, units], nan where nothing was timed.

        None for one process, or with too few units that all processes have timed with all methods. Set `apart` for
        methods that ran in processes of their own, which have nothing in common.
        """
        methods, processes = logs.shape[:2]
        whole = np.isfinite(logs).all(axis=(0, 1))
        freedom = (methods - (not apart)) * (processes - 1)
        if not freedom or whole.sum() < FEWEST_UNITS:
            return None
        speeds = np.apply_along_axis(_typical_log, 2, logs[:, :, whole])
        residuals = speeds - speeds.mean(axis=1, keepdims=True)
        if not apart:
            residuals -= residuals.mean(axis=0)
        return cls(float((residuals**2).sum()) / freedom, freedom, processes, max(2, methods - (not apart)))

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
        """Return half the width of the interval of two methods' logarithmic ratio, by default a 95 % interval.

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
        """Return the interval of a ratio of two methods with the half width over processes added in quadrature."""
        half_width = self.half_width(limit)
        below = sqrt(log(value / bounds[0]) ** 2 + half_width**2)
        above = sqrt(log(bounds[1] / value) ** 2 + half_width**2)
        return [value * exp(-below), value * exp(above)]


def _typical_log(logs: Array) -> float:
    typical = Typical.of(logs)
    assert typical is not None, "units were counted before"
    return log(typical.value)


def level_of(limit: float | None) -> float:
    """Return the level of intervals that show what exceeds `limit` standard errors; at least, and by default, 95 %."""
    return LEVEL if limit is None else max(LEVEL, 1 - erfc(limit / sqrt(2)))


@dataclass(frozen=True, slots=True)
class TypicalFamily:
    """The comparisons of one table: every method with its baseline, and with the reference.

    `speeds` [units, methods] are logarithms of the methods' speeds relative to their baselines, nan where one is
    missing, and `seconds` [units] how long the baseline took. The reference is the fastest of the `candidates` in all;
    a single candidate was fixed in advance, and without any the methods are compared with their baselines alone.
    """

    speeds: Array
    seconds: Array
    candidates: Sequence[int]
    has_baseline: Sequence[bool]
    reference: int | None = None
    is_baseline: Sequence[bool] = ()
    """Methods that are the baseline itself: they are compared with the others as these are with their baselines."""
    level: float = LEVEL
    """The share of tables of equal methods that contain no false verdict."""
    spread: ProcessSpread | None = None

    def limit(self, seed: int = 0) -> float:
        """Return the deviation beyond which differences are shown, such that all verdicts hold together.

        Equal methods could have had each other's times of a prompt, so that shuffling these says how far apart equal
        methods come out. What is shown is set aside, and the others are compared among themselves again.
        """
        beside_baseline = {m for m, has_one in enumerate(self.has_baseline) if has_one}
        beside_reference = self._rivals()
        while True:
            limit = self._largest(beside_baseline, beside_reference, np.random.default_rng(seed))
            left = {m for m in beside_baseline if not self._is_shown(m, None, limit)}
            rivals = {m for m in beside_reference if not self._is_shown(m, self.reference, limit)}
            if (left, rivals) == (beside_baseline, beside_reference):
                return limit
            beside_baseline = left
            beside_reference = rivals

    def _rivals(self) -> set[int]:
        """Return the methods whose comparison with the reference is none with a baseline."""
        baselines = {method for method, is_one in enumerate(self.is_baseline) if is_one}
        if self.reference is None or self.reference in baselines:
            return set()
        return set(range(self.speeds.shape[1])) - baselines - {self.reference}

    def _is_shown(self, method: int, rival: int | None, limit: float) -> bool:
        logs = self.speeds[:, method] - (0 if rival is None else self.speeds[:, rival])
        typical = Typical.of(logs[np.isfinite(logs)])
        if typical is None or abs(typical.deviation) <= limit:
            return False
        bounds = typical.interval(limit)
        if self.spread is None or bounds is None:
            return True
        low, high = self.spread.widen(typical.value, bounds, limit)
        return not low <= 1 <= high

    def _largest(
        self, beside_baseline: Collection[int], beside_reference: Collection[int], rng: np.random.Generator
    ) -> float:
        """Return what the largest deviation of equal methods exceeds in no more tables than the level allows."""
        missing = np.isnan(self.speeds)
        # Units of other tables have no times in this one.
        present = ~missing.all(axis=1)
        if present.sum() > MOST_UNITS:
            present = np.flatnonzero(present)[np.linspace(0, present.sum() - 1, MOST_UNITS).astype(int)]
        speeds = self.speeds[present]
        missing = missing[present]
        units = len(speeds)
        # So few units show nothing, whatever the limit is.
        if units < FEWEST_UNITS or len(beside_baseline) + len(beside_reference) < 2:
            return limit_of_one(max(1, units), self.level)
        # Place 0 is the baseline; a missing unit counts as an average one.
        average = np.where(missing, 0, speeds).sum(axis=1) / (~missing).sum(axis=1)
        lanes = np.column_stack([np.zeros(units), np.where(missing, average[:, None], speeds)])
        own = [1 + method for method in sorted(beside_baseline)]
        compared = sorted(1 + method for method in beside_reference)
        if compared and self.reference is not None:
            compared.append(1 + self.reference)
        equal = [[0, *own], compared]
        if set(own) & set(compared):
            equal = [sorted({0, *own, *compared})]
        candidates = [place for place in compared if place - 1 in self.candidates] or compared[-1:]
        largest = []
        for size in _portions(SHUFFLES, AT_ONCE // lanes.size):
            shuffled = np.broadcast_to(lanes, (size, *lanes.shape)).copy()
            for places in equal:
                order = rng.random((size, units, len(places))).argsort(axis=2)
                shuffled[:, :, places] = np.take_along_axis(shuffled[:, :, places], order, axis=2)
            found = np.zeros(size)
            if own:
                found = np.maximum(found, _deviations(shuffled[:, :, own] - shuffled[:, :, :1]).max(axis=1))
            if compared:
                totals = np.einsum("u,suc->sc", self.seconds[present], np.exp(-shuffled[:, :, candidates]))
                fastest = np.asarray(candidates)[totals.argmin(axis=1)]
                rival = np.take_along_axis(shuffled, fastest[:, None, None], axis=2)
                found = np.maximum(found, _deviations(shuffled[:, :, compared] - rival).max(axis=1))
            largest.append(found)
        return float(np.quantile(np.concatenate(largest), self.level, method="higher"))


def _portions(total: int, most: int) -> Iterator[int]:
    """Yield sizes of at most `most` that add up to the total."""
    most = max(1, most)
    yield from (min(most, total - done) for done in range(0, total, most))


def _deviations(logs: Array) -> Array:
    """Return how far sums of positive ranks lie from those of equal sides: [shuffles, units, pairs] -> [.., pairs]."""
    units = logs.shape[1]
    order = np.abs(logs).argsort(axis=1)
    ranks = np.empty_like(logs)
    np.put_along_axis(ranks, order, np.arange(1.0, units + 1)[None, :, None], axis=1)
    above = (ranks * ((logs > NO_WIDTH) + 0.5 * (np.abs(logs) <= NO_WIDTH))).sum(axis=1)
    deviations: Array = np.abs(above - units * (units + 1) / 4) / spread_of_ranks(units)
    return deviations
