"""Ratios of sums over units, and their intervals.

A unit is what varies independently: a prompt with its repeats, all turns of a dialogue, or what
shares a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, isfinite, log, log2, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.decoding.records import RequestRecord

Units = Mapping[str, int]
"""The number of each request's unit, by the request's id."""


def units_of(records: Sequence[RequestRecord], together: int = 1, first: int = 0) -> dict[str, int]:
    """Return units of so many prompts that were admitted one after the other, numbered from `first`.

    On a clock, requests of one batch share the time of every forward, so that a slow moment affects
    all of them, and the batch is what varies `together`. On modelled time each prompt varies by
    itself: its rounds are its own, and a step's time hardly depends on who shares it (of 48 sets of
    prompts 47 intervals held the mean of all). The turns of a dialogue are one prompt: what drafts
    well in one of them does so in the others.
    """
    admitted_s: dict[str, float] = {}
    for record in records:
        start_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
        admitted_s[record.request_id] = min(start_s, admitted_s.get(record.request_id, start_s))
    names = list(admitted_s)
    # Another tool may not record times: then its requests are taken in the order of their records.
    if all(record.finished_s is not None for record in records if record.finish_reason != "error"):
        names.sort(key=admitted_s.__getitem__)
    dialogues = _dialogues(records)
    places: dict[int, int] = {}
    for name in names:
        places.setdefault(dialogues[name], len(places))
    return {name: first + places[dialogues[name]] // max(1, together) for name in names}


def _dialogues(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Return the number of each request's dialogue, which a single prompt has for itself."""

    def turn(record: RequestRecord) -> int:
        number = record.request_id.rpartition("/")[2]
        return int(number) if number.isdecimal() else 0

    dialogues = Dialogues()
    numbers: dict[str, int] = {}
    # A dialogue's turns come in order, whatever order they finished in.
    for record in sorted(records, key=turn):
        if record.request_id not in numbers:
            numbers[record.request_id] = dialogues.index(
                record.request_id, record.prompt_ids, record.output_ids, record.dialogue
            )
    return numbers


Array = NDArray[np.float64]
Interval = list[float]

LEVEL = 0.95
FEWEST_UNITS = 6
"""Fewer units cannot show a difference with 95% confidence even if all of them agree (2 x 0.5^5 >
5%).
"""
NO_WIDTH = 1e-9
"""Relative width up to which an interval is due to rounding; no interval is given then."""


def units_for_a_verdict(figures: int) -> int:
    """Return how many units are enough to show a difference in one of several figures that hold
    together.

    A figure of equals comes out the same way in all units in 2^(1 - units) of cases, and each of
    the others may too.
    """
    return ceil(1 + log2(figures / (1 - LEVEL)))


def ratio_of_sums(numerator: float, denominator: float) -> float | None:
    """Return the ratio; None if the denominator is zero or either side is unknown."""
    return (
        float(numerator / denominator)
        if denominator and isfinite(numerator) and isfinite(denominator)
        else None
    )


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
    def of(
        cls, numerators: Sequence[ArrayLike], denominators: Sequence[ArrayLike]
    ) -> "Ratio | None":
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
        change: Array = np.sum(
            [sign * share for sign, share in zip(signs, shares, strict=True)], axis=0
        )
        # Divided by the weight without the unit: a long prompt pulls the ratio towards itself,
        # which makes its own deviation look too small.
        remainder = np.maximum(1 - weight, NO_WIDTH)
        return cls(
            value,
            change / remainder,
            int((weight > 0).sum()),
            max(1.0, 1 / float((weight**2).sum()) - 1),
        )

    @property
    def standard_error(self) -> float:
        """The standard error of the ratio's logarithm."""
        return sqrt(float((self.residuals**2).sum()))

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Return Student's t interval of the linearised logarithm; None for too few units, or if it
        has no width.
        """
        if self.units < FEWEST_UNITS:
            return None
        half = student(level, self.freedom) * self.standard_error
        # exp(700) is about the largest floating-point number.
        return [self.value * exp(-half), self.value * exp(half)] if NO_WIDTH < half < 700 else None


def interval_of_ratio(
    numerator: ArrayLike, denominator: ArrayLike, level: float = LEVEL
) -> Interval | None:
    """Return the interval of sum(numerator) / sum(denominator) over units."""
    ratio = Ratio.of([numerator], [denominator])
    return ratio.interval(level) if ratio else None


def interval_of_estimate(
    value: float, without_unit: Array, weight: Array, level: float = LEVEL
) -> Interval | None:
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
    """Return the geometric mean of ratios from several random splits of the same units, and its
    interval.

    The splits share units, so that their spread alone is too narrow: corrected resampled t, Nadeau
    and Bengio 2003. Fewer than three splits, or ratios without spread, give no interval.
    """
    logs = np.log(ratios)
    value = float(np.exp(logs.mean()))
    count = len(ratios)
    spread = float(logs.var(ddof=1)) if count > 2 else 0.0
    half = (
        student(level, count - 1) * sqrt((1 / count + test_share / (1 - test_share)) * spread)
        if spread
        else 0.0
    )
    return value, [value * exp(-half), value * exp(half)] if half > NO_WIDTH else None


def student(level: float, freedom: float) -> float:
    """Return the number of standard errors to either side that hold the central `level` of
    Student's t.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


@cache
def range_of_equals(level: float, methods: int, freedom: float) -> float:
    """Return the standard errors within which the largest difference between equal methods lies
    with this probability.

    It is Tukey's studentized range, in standard errors of a difference: that of two methods is
    Student's t.
    """
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(level, methods, freedom)) / sqrt(2)
