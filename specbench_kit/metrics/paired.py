"""Times of the same requests compared with each other: with a run's own baseline, and between runs.

Greedy answers are equal, and sampled ones differ in length. Where they do, a speed is the time that
a token takes: a method whose answers happened to be shorter is not faster for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, prod, sqrt

import numpy as np

from specbench_kit.decoding.records import Records
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.simultaneous import TableLimits, TypicalFamily
from specbench_kit.metrics.statistics import (
    FEWEST_UNITS,
    LEVEL,
    NO_WIDTH,
    Array,
    Interval,
    Ratio,
    Units,
    student,
)
from specbench_kit.metrics.typical import ProcessSpread, Typical, level_of, limit_of_one
from specbench_kit.metrics.verdicts import BY_PROMPT, FASTER, SLOWER, TOO_FEW, verdict

Key = tuple[str, int]
Seconds = Mapping[Key, float]
"""End-to-end seconds by the request's id and its repeat."""
Quantity = Mapping[Key, float] | Mapping[Key, int]
"""Seconds or tokens."""


Tokens = Mapping[Key, int]
"""Output tokens by the request's id and its repeat."""


def request_seconds(records: Records) -> dict[Key, float]:
    """Return the end-to-end seconds of the requests that finished."""
    return {r.key: r.e2e_s for r in records if r.finish_reason != "error" and r.e2e_s}


def request_tokens(records: Records) -> dict[Key, int]:
    """Return the number of output tokens of the requests that finished."""
    return {r.key: len(r.output_ids) for r in records if r.finish_reason != "error" and r.e2e_s}


@dataclass(frozen=True, slots=True)
class Side:
    """One run's requests, and the same requests decoded plainly in between, under the same state of
    the machine.

    Answers without a number of tokens are as long as the baseline's.
    """

    own: Seconds
    baseline: Seconds
    is_measured: bool = False
    """Whether a clock has measured the seconds, so that they depend on the process."""
    own_tokens: Tokens = field(default_factory=dict)
    baseline_tokens: Tokens = field(default_factory=dict)
    differs_in_length: bool = field(init=False, compare=False)
    """Whether an answer has another number of tokens than the baseline's."""

    def __post_init__(self) -> None:
        tokens = self.baseline_tokens
        differs = any(
            key in tokens and tokens[key] != count for key, count in self.own_tokens.items()
        )
        object.__setattr__(self, "differs_in_length", differs)

    @classmethod
    def of(cls, records: Records, baseline: Records) -> "Side":
        """Return the seconds and tokens of both."""
        is_measured = bool(records) and records[0].time_kind == "measured"
        return cls(
            request_seconds(records),
            request_seconds(baseline),
            is_measured,
            request_tokens(records),
            request_tokens(baseline),
        )

    @property
    def above(self) -> list[Quantity]:
        """What the speed over the baseline is proportional to."""
        return [self.own_tokens, self.baseline] if self.differs_in_length else [self.baseline]

    @property
    def below(self) -> list[Quantity]:
        """What the speed over the baseline is inversely proportional to."""
        return [self.baseline_tokens, self.own] if self.differs_in_length else [self.own]


@dataclass(frozen=True, slots=True)
class PairedSpeed:
    """The speed of one side relative to another, over the requests that both finished.

    `ratio` is that of the summed times and `typical` that of a typical unit, which verdicts go by. `raw` if they are
    of times alone, because a side has no baseline. `time_ratio` is the ratio of total times where answers differ in
    length, so that `ratio` is one of times per token. `win_share` is the share of requests on which the side is
    faster; one with equal times counts half. The `spread` over processes widens every interval of measured times.
    """

    ratio: Ratio
    typical: Typical
    pairs: int
    win_share: float
    raw: bool = False
    spread: ProcessSpread | None = None
    time_ratio: float | None = None

    def interval(self, limits: TableLimits | None = None) -> Interval | None:
        """Return the confidence interval of the ratio of sums: that of a table, or a 95 % interval
        by itself.
        """
        return (
            self._interval(limits.level, limits.typical) if limits else self._interval(LEVEL, None)
        )

    def typical_interval(self, limits: TableLimits | None = None) -> Interval | None:
        """Return the confidence interval of the typical ratio in the same way."""
        return self._typical_interval(limits.typical if limits else None)

    def _interval(self, level: float, limit: float | None) -> Interval | None:
        bounds = self.ratio.interval(level)
        return (
            self.spread.widen(self.ratio.value, bounds, limit) if self.spread and bounds else bounds
        )

    def _typical_interval(self, limit: float | None) -> Interval | None:
        value = self.typical.value
        # A method may lack some units of its table, which makes the limit of a single comparison
        # larger.
        bounds = self.typical.interval(limit and max(limit, limit_of_one(self.typical.units)))
        if self.spread and self.typical.is_constant and self.typical.units >= FEWEST_UNITS:
            bounds = [value, value]
        return self.spread.widen(value, bounds, limit) if self.spread and bounds else bounds

    def typical_upper_bound(self) -> float | None:
        """Return what the typical ratio is below, with a confidence of 95 %; None for too few
        units.
        """
        bound = self.typical.upper_bound()
        if self.spread is None or bound is None:
            return bound
        value = self.typical.value
        half_width = student(2 * LEVEL - 1, self.spread.freedom) * self.spread.standard_error
        return value * exp(sqrt(log(bound / value) ** 2 + half_width**2))

    def verdict(self, limits: TableLimits | None = None) -> str:
        """Return which side is shown to be faster on a typical prompt, unless the summed times show
        the opposite.

        Within a table, verdicts step down and intervals do not: a difference may be shown whose
        interval contains 1.
        """
        typical = self.typical
        limit = limits.shown if limits else None
        bounds = self._typical_interval(limit)
        if bounds is None and not typical.is_constant:
            return TOO_FEW
        shown = verdict(typical.value, bounds, typical.units)
        in_all = verdict(self.ratio.value, self._interval(level_of(limit), limit), self.ratio.units)
        return BY_PROMPT if {shown, in_all} == {FASTER, SLOWER} else shown


def process_spread(sides: Sequence[Side], units: Units, processes: int) -> ProcessSpread | None:
    """Return how far apart processes, which number the repeats, are in the speeds of a table's
    methods.

    A baseline is one of the methods. Of one process, or too few prompts that all processes have
    timed, it is assumed. None for modelled times, which no process changes.
    """
    if len(sides) < 2 or not any(side.is_measured for side in sides):
        return None
    # Baselines that differ were decoded by commands of their own, in their own processes.
    apart = any(side.baseline != sides[0].baseline for side in sides)
    methods = [side for side in sides if not apart or side.own != side.baseline]
    seen = None
    if processes > 1:
        seen = ProcessSpread.of(
            np.array([_by_process(side, units, processes) for side in methods]), apart=apart
        )
    return seen or ProcessSpread.assumed(len(methods), apart=apart)


def _by_process(side: Side, units: Units, processes: int) -> Array:
    """Return the logarithmic speed of a method in each process, relative to its baseline:
    [processes, units].
    """
    # A baseline may have finished requests of a partial run that no method has.
    above = side.above if side.baseline else []
    keys = [key for key in side.own if key[0] in units and (not above or key in side.baseline)]
    logs = []
    for process in range(processes):
        own_keys = [key for key in keys if key[1] == process]
        logs.append(unit_logs(above, side.below, own_keys, units))
    return np.array(logs)


def speedup(side: Side, units: Units, spread: ProcessSpread | None = None) -> PairedSpeed | None:
    """Return baseline seconds / own seconds, per token where answers differ in length.

    None without a request that finished in both.
    """
    speed = _compare(side.above, side.below, units, spread)
    if speed is None or not side.differs_in_length:
        return speed
    shared = side.own.keys() & side.baseline.keys()
    total_s, own_s = (sum(seconds[key] for key in shared) for seconds in (side.baseline, side.own))
    return replace(speed, time_ratio=total_s / own_s)


def limits_of_speedups(sides: Sequence[Side], units: Units) -> TableLimits:
    """Return what the intervals of several methods' speedups over one baseline go by, so that they
    hold together.
    """
    logs = [
        unit_logs(side.above, side.below, [key for key in side.own if key in side.baseline], units)
        for side in sides
    ]
    baseline = sides[0].baseline
    seconds = np.exp(unit_logs([baseline], [], list(baseline), units))
    return TypicalFamily(np.column_stack(logs), seconds, [], [True] * len(logs)).limits()


def relative_speed(
    side: Side, reference: Side, units: Units, spread: ProcessSpread | None = None
) -> PairedSpeed | None:
    """Return the speedup of one run over that of another, so that what slowed a run and its
    baseline alike cancels.

    If a side has no baseline, it is the reference's seconds / own seconds.
    """
    if side.baseline and reference.baseline:
        return _compare(
            [*side.above, *reference.below], [*side.below, *reference.above], units, spread
        )
    raw = Side(
        side.own, reference.own, own_tokens=side.own_tokens, baseline_tokens=reference.own_tokens
    )
    speed = _compare(raw.above, raw.below, units, spread)
    return replace(speed, raw=True) if speed else None


def baseline_ratio(side: Side, reference: Side, units: Units) -> PairedSpeed | None:
    """Return the reference's baseline seconds / this run's: not 1 if machine or software changed
    between the runs.
    """
    return _compare([reference.baseline], [side.baseline], units)


def _compare(
    numerators: Sequence[Quantity],
    denominators: Sequence[Quantity],
    units: Units,
    spread: ProcessSpread | None = None,
) -> PairedSpeed | None:
    sides = [*numerators, *denominators]
    shared = set(sides[0]).intersection(*sides[1:])
    keys = [key for key in sides[-1] if key in shared]
    ratio = Ratio.of(
        [_sums(side, keys, units) for side in numerators],
        [_sums(side, keys, units) for side in denominators],
    )
    if ratio is None:
        return None
    logs = unit_logs(numerators, denominators, keys, units, spread)
    typical = Typical.of(logs[np.isfinite(logs)])
    assert typical is not None, "requests with times are units with a ratio"
    names = dict.fromkeys(name for name, _ in keys)
    prompts = {name: number for number, name in enumerate(names)}
    top = np.prod([_sums(side, keys, prompts) for side in numerators], axis=0)
    bottom = np.prod([_sums(side, keys, prompts) for side in denominators], axis=0)
    advantage = top / bottom - 1
    win_share = float(((advantage > NO_WIDTH) + 0.5 * (np.abs(advantage) <= NO_WIDTH)).mean())
    return PairedSpeed(ratio, typical, len(keys), win_share, spread=spread)


def unit_logs(
    numerators: Sequence[Quantity],
    denominators: Sequence[Quantity],
    keys: Sequence[Key],
    units: Units,
    spread: ProcessSpread | None = None,
) -> Array:
    """Return the logarithmic ratio of each unit, the median over its repeats: [units], nan where
    nothing was timed.

    It is the mean over repeats where the `spread` of their processes was seen, and widens
    intervals: what lasts as long as a process is the same for all units, and the median of five
    such numbers varies by a fifth more than the mean, whose error is known.
    """
    size = 1 + max(units.values())
    repeats = sorted({repeat for _, repeat in keys})
    table = np.full((len(repeats), size), np.nan)
    for row, number in zip(table, repeats, strict=True):
        of_repeat = [key for key in keys if key[1] == number]
        timed = sorted({units[name] for name, _ in of_repeat})
        above = [np.log(_sums(side, of_repeat, units)[timed]) for side in numerators]
        below = [np.log(_sums(side, of_repeat, units)[timed]) for side in denominators]
        row[timed] = np.sum(above, axis=0) - np.sum(below, axis=0)  # the sum of no sides is 0
    present = np.flatnonzero(np.isfinite(table).any(axis=0))
    logs = np.full(size, np.nan)
    middle = np.nanmean if spread is not None and spread.is_seen else np.nanmedian
    logs[present] = middle(table[:, present], axis=0)
    return logs


def _sums(quantity: Quantity, keys: Sequence[Key], units: Units) -> Array:
    """Return the sum of each unit, shape (units,)."""
    numbers = np.fromiter((units[name] for name, _ in keys), np.int64, len(keys))
    sums = np.bincount(numbers, weights=[quantity[key] for key in keys])
    return sums.astype(np.float64)


def request_mean(side: Side) -> float | None:
    """Return the mean over requests of their own speedups."""
    keys = [key for key in side.own if key in side.baseline]
    above, below = side.above, side.below
    speedups = [
        prod(part[key] for part in above) / prod(part[key] for part in below) for key in keys
    ]
    return float(np.mean(speedups)) if speedups else None


def fastest_shares(sides: Mapping[str, Side]) -> dict[str, float]:
    """Return by label the share of the common requests on which no other side is faster; ties are
    shared.
    """
    if len(sides) < 2:
        return {}
    raw = not all(side.baseline for side in sides.values())
    shared = set.intersection(
        *(set(side.own) if raw else set(side.own) & set(side.baseline) for side in sides.values())
    )
    names = sorted({name for name, _ in shared})
    if not names:
        return {}
    units = {name: number for number, name in enumerate(names)}
    keys = sorted(shared)
    times = []
    for side in sides.values():
        above = [side.own_tokens] if raw and side.own_tokens else [] if raw else side.above
        below = [side.own] if raw else side.below
        speed = np.prod([_sums(part, keys, units) for part in above], axis=0)
        times.append(np.prod([_sums(part, keys, units) for part in below], axis=0) / speed)
    table = np.column_stack(times)
    first = table <= table.min(axis=1, keepdims=True) * (1 + NO_WIDTH)
    shares = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    return dict(zip(sides, map(float, shares), strict=True))


def speedup_metrics(speed: PairedSpeed | None) -> Metrics:
    """Return the speedup's metrics, without its intervals."""
    if speed is None:
        return {
            "speedup": None,
            "typical_speedup": None,
            "speedup_pairs": 0,
            "speedup_units": 0,
            "win_share": None,
        }
    return {
        "speedup": speed.ratio.value,
        "typical_speedup": speed.typical.value,
        "speedup_pairs": speed.pairs,
        "speedup_units": speed.ratio.units,
        "time_ratio": speed.time_ratio,
        "win_share": speed.win_share,
    }


def speedup_intervals(
    speed: PairedSpeed | None, limits: TableLimits | None = None
) -> dict[str, Interval | None]:
    """Return the intervals of the speedup and of a typical prompt's, which hold together with those
    of a table.
    """
    if speed is None:
        return {"speedup": None, "typical_speedup": None}
    return {"speedup": speed.interval(limits), "typical_speedup": speed.typical_interval(limits)}
