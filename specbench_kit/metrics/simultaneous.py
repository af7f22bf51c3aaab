"""How far equal sides come out apart in the largest of many comparisons, so that what a table says
holds together.

The comparisons of a table share units, and often a side, so that they are wrong together or not at
all. Where two sides are equal, each could have had the other's time of a unit: its logarithmic
ratio is as likely to have the other sign. Random signs, the same for all comparisons of a unit,
therefore say how the deviations of equal sides vary together, whatever the distribution of each is.
A comparison of sides that took the same time in every unit never deviates.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench_kit.metrics.statistics import FEWEST_UNITS, LEVEL, NO_WIDTH, Array
from specbench_kit.metrics.typical import (
    MOST_UNITS,
    ProcessSpread,
    Typical,
    level_of,
    limit_of_one,
    spread_of_ranks,
    typical_log,
)

Mask = NDArray[np.bool_]
DRAWS = 2000
"""Random signs of all units from which the largest deviation of equal sides is taken."""


@dataclass(frozen=True, slots=True)
class TableLimits:
    """What the verdicts and intervals of one table go by, such that all of them hold together.

    Verdicts step down: what is shown is set aside, and the rest is compared among itself, so that `shown`, the
    deviation in standard errors beyond which a difference is shown, may be smaller than `typical`, within which the
    deviations of all true ratios lie. `level` is that of each interval of a ratio of summed times. By `typical` and
    `level` all intervals of a table, of both kinds, hold their true ratios in 95 % of tables.
    """

    shown: float
    typical: float
    level: float

    @classmethod
    def of(cls, limit: float) -> "TableLimits":
        """Return the limits of a table whose verdicts do not step down."""
        return cls(limit, limit, level_of(limit))


@dataclass(frozen=True, slots=True)
class Flips:
    """Random signs of the units that some comparisons share, and normal numbers with these signs:
    [draws, units].

    The signs of ranks suffice. Sums of which a few units make up most have tails that signs alone
    cannot reach.
    """

    signs: Array
    normal: Array

    @classmethod
    def of(cls, units: int, rng: np.random.Generator) -> "Flips":
        """Draw the signs of so many units."""
        normal = rng.standard_normal((DRAWS, units))
        return cls(np.sign(normal), normal)

    def only(self, draws: Mask) -> "Flips":
        """Return the draws for which the mask is True."""
        return Flips(self.signs[draws], self.normal[draws])

    def rank_deviations(self, logs: Array, noise: Array | None = None) -> Array:
        """Return how far the sums of positive ranks lie from those of equal sides, in standard
        errors.

        `logs` [units, comparisons] are logarithmic ratios, nan where a unit has none; `noise` [draws, comparisons] is
        standard normal. Returns [draws, comparisons].
        """
        ranks = signed_ranks(logs)
        spreads = np.array(
            [spread_of_ranks(max(1, units)) for units in np.isfinite(logs).sum(axis=0)]
        )
        return _deviations(self.signs, ranks / (2 * spreads), noise, len(logs))

    def sum_deviations(self, residuals: Array, noise: Array, units: float) -> Array:
        """Return how far logarithms of ratios of sums lie from their true values, in standard
        errors.

        `residuals` [units, comparisons] are what each unit adds to them, and `units` is their effective number.
        """
        errors = np.sqrt((residuals**2).sum(axis=0))
        scaled = np.divide(residuals, errors, out=np.zeros_like(residuals), where=errors > NO_WIDTH)
        return _deviations(self.normal, scaled, noise, units)


def _deviations(signs: Array, scores: Array, noise: Array | None, units: float) -> Array:
    # Where sides are equal, signs alone are exact. Around estimates, few units show correlations
    # even where there are none, and a share of independent noise makes up for them.
    share = 1 / (1 + units) if noise is not None else 0.0
    deviations: Array = np.abs(
        sqrt(1 - share) * (signs @ scores) + (0.0 if noise is None else sqrt(share) * noise)
    )
    deviations[:, ~scores.any(axis=0)] = 0.0
    return deviations


def signed_ranks(logs: Array) -> Array:
    """Return Wilcoxon's signed ranks of every column, 0 where both sides took the same time or a
    unit is missing.
    """
    present = np.isfinite(logs)
    order = np.where(present, np.abs(logs), np.inf).argsort(axis=0)
    ranks = np.empty_like(logs)
    np.put_along_axis(
        ranks, order, np.broadcast_to(np.arange(1.0, len(logs) + 1)[:, None], logs.shape), axis=0
    )
    return np.where(present & (np.abs(logs) > NO_WIDTH), np.sign(logs) * ranks, 0.0)


def exceeded_by_equals(largest: Array, level: float) -> float:
    """Return what the largest deviation of equal sides exceeds with a probability of `1 - level` at
    most.

    `largest` [draws] holds it for random exchanges of the sides: a permutation test of all comparisons together.
    """
    return float(np.quantile(largest, level, method="higher"))


def joint_limits(typical: Array, in_all: Array, level: float, units: int) -> tuple[float, float]:
    """Return the limit of typical ratios and the level of ratios of sums by which the intervals of
    both hold together.

    `typical` and `in_all` [draws] are the largest deviations of either kind, and `units` is the number of units.
    """
    # Both kinds are given the same chance, and so much of it that the worse of them keeps the
    # level.
    worse = np.maximum(_shares(typical), _shares(in_all))
    share = exceeded_by_equals(worse, level)
    limit = max(limit_of_one(units, level), exceeded_by_equals(typical, share))
    return limit, max(level, level_of(exceeded_by_equals(in_all, share)))


Family = TypeVar("Family")
"""Comparisons that are made together."""


def step_down(
    family: Family, limit_of: Callable[[Family], float], left_of: Callable[[Family, float], Family]
) -> tuple[float, Family]:
    """Return the deviation beyond which differences are shown, and the comparisons that were not
    shown to differ.

    What is shown is set aside, and the others are compared among themselves again.
    """
    while True:
        limit = limit_of(family)
        left = left_of(family, limit)
        if left == family:
            return limit, family
        family = left


def _shares(deviations: Array) -> Array:
    """Return the share of draws whose deviation is no larger than that of each draw."""
    return np.searchsorted(np.sort(deviations), deviations, side="right") / len(deviations)


def evenly(units: int) -> NDArray[np.int64]:
    """Return the numbers of the units that stand for all of them, which are at most
    `MOST_UNITS`.
    """
    return np.unique(np.linspace(0, units - 1, min(units, MOST_UNITS)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class TypicalFamily:
    """The comparisons of one table: every method with its baseline, and with the reference.

    `speeds` [units, methods] are logarithms of the methods' speeds relative to their baselines, nan where one is
    missing, and `seconds` [units] how long the baseline took. The reference is the fastest of the `candidates` on a
    typical unit; a single candidate was fixed in advance, and without any the methods are compared with their baselines
    alone.
    """

    speeds: Array
    seconds: Array
    candidates: Sequence[int]
    has_baseline: Sequence[bool]
    reference: int | None = None
    is_baseline: Sequence[bool] = ()
    """Methods that are the baseline itself: they are compared with the others as these are with
    their baselines.
    """
    level: float = LEVEL
    """The share of tables of equal methods without a false verdict, and of tables whose intervals
    all hold.
    """
    spread: ProcessSpread | None = None

    def limits(self, seed: int = 0) -> TableLimits:
        """Return what the table's verdicts and intervals go by."""
        present = np.flatnonzero(np.isfinite(self.speeds).any(axis=1))
        present = present[evenly(len(present))]
        own = {
            method
            for method, has_one in enumerate(self.has_baseline)
            if has_one and not self._is_baseline(method)
        }
        rivals = self._rivals()
        # So few units show nothing, whatever the limit is.
        if len(present) < FEWEST_UNITS or not own | rivals:
            limit = limit_of_one(max(1, len(present)), self.level)
            return TableLimits(limit, limit, self.level)
        lanes = _Lanes(
            self.speeds[present], self.seconds[present], self.level, np.random.default_rng(seed)
        )
        compared = _Compared(own, rivals, self._references(rivals))
        shown, kept = step_down(compared, lanes.shown_limit, self._left)
        # Nothing is set aside for intervals, which hold whatever the truth is, but possible
        # references: the data would not have chosen what another candidate was shown to be faster
        # than.
        limit, level = lanes.interval_limits(_Compared(own, rivals, kept.references))
        return TableLimits(shown, limit, level)

    def _rivals(self) -> set[int]:
        """Return the methods whose comparison with the reference is none with a baseline."""
        if self.reference is None or self._is_baseline(self.reference):
            return set()
        return {
            m
            for m in range(self.speeds.shape[1])
            if m != self.reference and not self._is_baseline(m)
        }

    def _is_baseline(self, method: int) -> bool:
        return bool(self.is_baseline) and self.is_baseline[method]

    def _references(self, rivals: Collection[int]) -> list[int]:
        """Return the methods that the data could have made the reference, if only these rivals are
        as fast.
        """
        assert self.reference is not None or not rivals, (
            "methods have no rivals without a reference"
        )
        possible = [method for method in rivals if method in self.candidates]
        return sorted([*possible, self.reference]) if rivals and self.reference is not None else []

    def _left(self, compared: "_Compared", limit: float) -> "_Compared":
        """Return what is not shown to differ by more than a limit."""
        own = {method for method in compared.own if not self._is_shown(method, None, limit)}
        rivals = {
            method
            for method in compared.rivals
            if not self._is_shown(method, self.reference, limit)
        }
        return _Compared(own, rivals, self._references(rivals))

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


@dataclass(frozen=True, slots=True)
class _Compared:
    """Which methods are compared: some with their baseline, some with the fastest of the possible
    references.
    """

    own: Collection[int]
    rivals: Collection[int]
    references: Sequence[int]

    def __len__(self) -> int:
        return len(self.own) + len(self.rivals)


BASELINE = 0
"""The lane of the baseline; that of a method has the method's number, counted from 1."""
Deviations = Callable[[Sequence[int], int, Mask], Array]
"""Returns how far lanes deviate from another lane, in those of the draws for which a mask is
True.
"""


class _Lanes:
    """The logarithmic speeds of a table's methods on its units, beside the baseline's, which are
    0.
    """

    def __init__(
        self, speeds: Array, seconds: Array, level: float, rng: np.random.Generator
    ) -> None:
        units, methods = speeds.shape
        self._level = level
        self._seconds = seconds
        self._speeds = np.column_stack([np.zeros(units), speeds])
        self._flips = Flips.of(units, rng)
        # Every lane has noise of its own, so that comparisons with a lane in common share its
        # noise.
        self._noise = rng.standard_normal((1 + methods, DRAWS)).T / sqrt(2)

    def shown_limit(self, compared: _Compared) -> float:
        """Return what the largest deviation exceeds in no more tables of equal methods than the
        level allows.
        """
        one = limit_of_one(len(self._speeds), self._level)
        if len(compared) < 2:
            return one
        largest = self._largest(compared, self._speeds, self._ranks_of(self._speeds, noisy=False))
        return max(one, exceeded_by_equals(largest, self._level))

    def interval_limits(self, compared: _Compared) -> tuple[float, float]:
        """Return the limit of typical ratios and the level of ratios of sums by which all intervals
        hold together.
        """
        # What remains without each method's typical speed is how far its estimate may lie from the
        # truth.
        centred = self._speeds - [typical_log(column) for column in self._speeds.T]
        if len(compared) < 2:
            return limit_of_one(len(centred), self._level), self._level
        typical = self._largest(compared, centred, self._ranks_of(centred))
        in_all = self._largest(compared, centred, self._sums())
        return joint_limits(typical, in_all, self._level, len(centred))

    def _largest(self, compared: _Compared, speeds: Array, deviations: Deviations) -> Array:
        """Return the largest deviation in each draw: of methods from the baseline, and from the
        fastest of the draw.
        """
        largest = np.zeros(DRAWS)
        if compared.own:
            own = [1 + method for method in sorted(compared.own)]
            largest = deviations(own, BASELINE, np.ones(DRAWS, dtype=bool)).max(axis=1)
        lanes = [1 + method for method in sorted({*compared.rivals, *compared.references})]
        references = [1 + method for method in compared.references]
        fastest = self._fastest(speeds[:, references]) if references else np.empty(0)
        for place, reference in enumerate(references):
            chosen = fastest == place
            others = [lane for lane in lanes if lane != reference]
            if others and chosen.any():
                largest[chosen] = np.maximum(
                    largest[chosen], deviations(others, reference, chosen).max(axis=1)
                )
        return largest

    def _fastest(self, speeds: Array) -> NDArray[np.int64]:
        """Return which of the lanes is the fastest typically in each draw, if they are equal but
        for random signs.
        """
        apart = speeds - np.nanmean(speeds, axis=1, keepdims=True)
        # A typical ratio lies as many of its standard errors from 1 as the signed ranks from those
        # of equal sides.
        typical = [Typical.of(column[np.isfinite(column)]) for column in apart.T]
        errors = np.array([(one.standard_error if one else None) or 0.0 for one in typical])
        spreads = np.array(
            [spread_of_ranks(max(1, units)) for units in np.isfinite(apart).sum(axis=0)]
        )
        logs = self._flips.signs @ (signed_ranks(apart) / (2 * spreads)) * errors
        fastest: NDArray[np.int64] = logs.argmax(axis=1)
        return fastest

    def _ranks_of(self, speeds: Array, *, noisy: bool = True) -> Deviations:
        def deviations(lanes: Sequence[int], other: int, draws: Mask) -> Array:
            logs = speeds[:, lanes] - speeds[:, [other]]
            noise = self._noise_of(lanes, other, draws) if noisy else None
            return self._flips.only(draws).rank_deviations(logs, noise)

        return deviations

    def _sums(self) -> Deviations:
        average = np.nanmean(self._speeds[:, 1:], axis=1, keepdims=True)
        seconds = self._seconds[:, None] * np.exp(
            -np.where(np.isfinite(self._speeds), self._speeds, average)
        )
        shares = seconds / seconds.sum(axis=0)
        weight = shares.mean(axis=1, keepdims=True)
        parts = shares / np.maximum(1 - weight, NO_WIDTH)
        units = 1 / float((weight**2).sum())

        def deviations(lanes: Sequence[int], other: int, draws: Mask) -> Array:
            residuals = parts[:, [other]] - parts[:, lanes]
            return self._flips.only(draws).sum_deviations(
                residuals, self._noise_of(lanes, other, draws), units
            )

        return deviations

    def _noise_of(self, lanes: Sequence[int], other: int, draws: Mask) -> Array:
        noise = self._noise[draws]
        difference: Array = noise[:, lanes] - noise[:, [other]]
        return difference
