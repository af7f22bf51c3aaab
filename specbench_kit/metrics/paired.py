"""Times of the same requests held against each other: with a run's own baseline, and between runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import LEVEL, NO_WIDTH, Array, Interval, Ratio
from specbench_kit.metrics.units import Units

Key = tuple[str, int]
Seconds = Mapping[Key, float]
"""End to end, by the request's id and its repeat."""
Records = Sequence[RequestRecord]


def request_seconds(records: Records) -> dict[Key, float]:
    """End-to-end seconds of the requests that finished."""
    return {r.key: r.e2e_s for r in records if r.finish_reason != "error" and r.e2e_s}


@dataclass(frozen=True, slots=True)
class Side:
    """One run's requests, and the same ones decoded plainly in between, which met the same state of the machine."""

    own: Seconds
    baseline: Seconds

    @classmethod
    def of(cls, records: Records, baseline: Records) -> "Side":
        """The seconds of both."""
        return cls(request_seconds(records), request_seconds(baseline))


@dataclass(frozen=True, slots=True)
class PairedSpeed:
    """How fast one side is, the other being 1. `raw`: by times alone, for want of a baseline on both sides.

    `win_share` is of prompts; one on which both sides are equally fast counts half.
    """

    ratio: Ratio
    pairs: int
    win_share: float
    raw: bool = False

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Of the ratio."""
        return self.ratio.interval(level)


def speedup(side: Side, units: Units) -> PairedSpeed | None:
    """Baseline seconds / own seconds; None without a request that finished in both."""
    return _compare([side.baseline], [side.own], units)


def relative_speed(side: Side, reference: Side, units: Units) -> PairedSpeed | None:
    """The speedup of one run over that of another, so that what slowed a run and its baseline alike cancels.

    Without a baseline on both sides it is the reference's seconds / own seconds.
    """
    if side.baseline and reference.baseline:
        return _compare([side.baseline, reference.own], [side.own, reference.baseline], units)
    found = _compare([reference.own], [side.own], units)
    return PairedSpeed(found.ratio, found.pairs, found.win_share, raw=True) if found else None


def baseline_ratio(side: Side, reference: Side, units: Units) -> PairedSpeed | None:
    """The reference's baseline seconds / this run's: not 1 where machine or engine changed between the runs."""
    return _compare([reference.baseline], [side.baseline], units)


def _compare(tops: Sequence[Seconds], bases: Sequence[Seconds], units: Units) -> PairedSpeed | None:
    sides = [*tops, *bases]
    shared = set(sides[0]).intersection(*sides[1:])
    keys = [key for key in sides[-1] if key in shared]
    ratio = Ratio.of(*([_sums(side, keys, units) for side in part] for part in (tops, bases)))
    return PairedSpeed(ratio, len(keys), _win_share(tops, bases, keys)) if ratio else None


def _sums(seconds: Seconds, keys: Sequence[Key], units: Units) -> Array:
    """Of each unit, shape [units of all]."""
    numbers = np.fromiter((units[name] for name, _ in keys), np.int64, len(keys))
    found = np.bincount(numbers, weights=[seconds[key] for key in keys])
    return found.astype(np.float64)


def _win_share(tops: Sequence[Seconds], bases: Sequence[Seconds], keys: Sequence[Key]) -> float:
    places: dict[str, int] = {}
    prompts = {name: places.setdefault(name, len(places)) for name, _ in keys}
    sums = [[_sums(side, keys, prompts) for side in part] for part in (tops, bases)]
    advantage = np.prod(sums[0], axis=0) / np.prod(sums[1], axis=0) - 1
    return float(((advantage > NO_WIDTH) + 0.5 * (np.abs(advantage) <= NO_WIDTH)).mean())


def speed_residuals(columns: Iterable[tuple[Seconds, Seconds | None]], units: Units) -> Array:
    """Residuals of logarithmic speeds, [units, methods]: each method's seconds against its baseline's.

    Where a method has none, or has the seconds of all in common with others, they are taken against their mean.
    """
    sides = list(columns)
    size = 1 + max(units.values())
    tables = [_shares(own, units, size) for own, _ in sides]
    mean = np.mean(tables, axis=0)
    found = [mean if other is None else _shares(other, units, size) for _, other in sides]
    ratios = [Ratio.of([top], [base]) for top, base in zip(found, tables, strict=True)]
    return np.column_stack([ratio.residuals if ratio else np.zeros(size) for ratio in ratios])


def _shares(seconds: Seconds, units: Units, size: int) -> Array:
    sums = _sums(seconds, list(seconds), units) if seconds else np.zeros(0)
    return np.pad(sums / (sums.sum() or 1.0), (0, size - len(sums)))


def degrees_of_freedom(sides: Sequence[Seconds], units: Units) -> float:
    """Degrees of freedom of their ratios: how many units of one size would share the seconds as evenly, less one."""
    size = 1 + max(units.values())
    weight: Array = np.mean([_shares(one, units, size) for one in sides], axis=0)
    concentration = float((weight**2).sum())
    return max(1.0, 1 / concentration - 1) if concentration else 1.0


def request_mean(side: Side) -> float | None:
    """Mean over requests of their own speedups."""
    own = [side.baseline[key] / seconds for key, seconds in side.own.items() if key in side.baseline]
    return float(np.mean(own)) if own else None


def fastest_shares(sides: Mapping[str, Side]) -> dict[str, float]:
    """By label, the share of prompts on which no other is faster; a tie is shared. Of those that all have."""
    if len(sides) < 2:
        return {}
    raw = not all(side.baseline for side in sides.values())
    shared = set.intersection(
        *(set(side.own) if raw else set(side.own) & set(side.baseline) for side in sides.values())
    )
    names = sorted({name for name, _ in shared})
    if not names:
        return {}
    units, keys = {name: place for place, name in enumerate(names)}, sorted(shared)
    times = [
        _sums(side.own, keys, units) / (1 if raw else _sums(side.baseline, keys, units)) for side in sides.values()
    ]
    table = np.column_stack(times)
    first = table <= table.min(axis=1, keepdims=True) * (1 + NO_WIDTH)
    shares = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
    return dict(zip(sides, map(float, shares), strict=True))


def speedup_metrics(found: PairedSpeed | None) -> dict[str, Any]:
    """The speedup's metrics in a summary, less its interval."""
    if found is None:
        return {"speedup": None, "speedup_pairs": 0, "speedup_units": 0, "win_share": None}
    return {
        "speedup": found.ratio.value,
        "speedup_pairs": found.pairs,
        "speedup_units": found.ratio.units,
        "win_share": found.win_share,
    }
