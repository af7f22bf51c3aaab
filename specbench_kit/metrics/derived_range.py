"""What times and speeds are at the ends of what a deployment's derived times may be.

A range holds the figure that is shown as well, beyond which a method that decides by times may be
at both ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from specbench_kit.decoding.records import Records
from specbench_kit.metrics import paired
from specbench_kit.metrics.paired import PairedSpeed, Seconds, Side
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.statistics import Units


def seconds_at_ends(records: Records) -> list[Seconds]:
    """Return the end-to-end seconds of the finished requests at each end of the range; empty if one
    of them has none.

    Every finished request of a run has as many ends as its deployment.
    """
    finished = [record for record in records if record.finish_reason != "error" and record.e2e_s]
    counts = {len(record.ends_s) for record in finished}
    if len(counts) != 1:
        return []
    at_ends: list[Seconds] = []
    for end in range(counts.pop()):
        seconds = {record.key: record.ends_s[end] for record in finished}
        at_ends.append(seconds)
    return at_ends


def sides_at_ends(records: Records, baseline: Records) -> list[Side]:
    """Return a run's seconds beside its baseline's at each end; empty where either is not known."""
    own = seconds_at_ends(records)
    plain: list[Seconds] = seconds_at_ends(baseline) if baseline else [{} for _ in own]
    if len(own) != len(plain):
        return []
    side = Side.of(records, baseline)
    return [
        replace(side, own=seconds, baseline=plain_s)
        for seconds, plain_s in zip(own, plain, strict=True)
    ]


def time_range(records: Records, sides: Sequence[Side]) -> Metrics:
    """Return what the time of the requests is at the ends, relative to the time that the run goes
    by.
    """
    seconds = paired.request_seconds(records)
    middle_s = sum(seconds.values())
    ratios = [sum(side.own.values()) / middle_s for side in sides] if middle_s else []
    return {"time_least": min(1.0, *ratios), "time_most": max(1.0, *ratios)} if ratios else {}


def speedup_range(shown: PairedSpeed | None, sides: Sequence[Side], units: Units) -> Metrics:
    """Return the speedup of a typical prompt at the ends, and its range around the one that is
    shown.
    """
    return _range("typical_speedup", shown, [paired.speedup(side, units) for side in sides])


def relative_speed_range(
    shown: PairedSpeed | None, sides: Sequence[Side], reference: Sequence[Side], units: Units
) -> Metrics:
    """Return the typical speed relative to the reference at the same ends, and its range; empty
    where ends differ.
    """
    if len(sides) != len(reference):
        return {}
    pairs = zip(sides, reference, strict=True)
    return _range(
        "typical_relative_speed",
        shown,
        [paired.relative_speed(side, other, units) for side, other in pairs],
    )


def _range(metric: str, shown: PairedSpeed | None, speeds: Sequence[PairedSpeed | None]) -> Metrics:
    ratios = [speed.typical.value for speed in speeds if speed]
    if shown is None or not ratios or len(ratios) < len(speeds):
        return {}
    within = (*ratios, shown.typical.value)
    return {
        f"{metric}_least": min(within),
        f"{metric}_most": max(within),
        f"{metric}_at_ends": ratios,
    }


def without_ends(row: Metrics) -> Metrics:
    """Return a row without its values at the single ends, which a summary does not list."""
    return {name: value for name, value in row.items() if not name.endswith("_at_ends")}


def reversing_ends(
    ratio: float | None, at_ends: Sequence[float] | None, names: Sequence[str]
) -> list[str] | None:
    """Return the names of the ends at which a ratio lies on the other side of 1; None if it has no
    ends.
    """
    if ratio is None or at_ends is None or len(at_ends) != len(names):
        return None
    is_ahead: Callable[[float], bool] = (
        (lambda value: value > 1) if ratio > 1 else (lambda value: value < 1)
    )
    return [name for name, value in zip(names, at_ends, strict=True) if not is_ahead(value)]
