"""The limits beyond which a machine counts as disturbed, so that times taken on it should not be
quoted.

Readings are blocks, one for each process that timed something, as `Watch.end` makes them.
"""

from collections.abc import Sequence
from math import log
from typing import Annotated

from msgspec import Meta, Struct, field

from specbench_kit.core.typed_json import convert

LEAST_CPU_SHARE = 0.9
"""Least share of the time in which the timing thread had a processor. It never waits by itself on a
CPU.
"""
MOST_STEAL = 0.02
"""Largest share of the demanded processor seconds that the host may withhold, over all
processors.
"""
MOST_SPREAD = 2.0
"""Largest ratio of the 90th to the 10th percentile of the seconds of identical steps.

On two idle cores the bundled pair, whose steps take a millisecond, shows 1.2 to 1.6. A machine that
is shared evenly shows hardly more: the processor share reveals it.
"""
MOST_STEAL_OF_RATIOS = 0.2
"""Largest withheld share at which the ratio of methods that took turns is still to be trusted."""
MOST_UNEVEN = 0.15
"""Largest difference of two lanes' processor shares: beyond, one of them was starved alone."""
WIDEST_CONTROL = 1.5
"""Largest ratio of the ends of the control's interval: a wider one holds 1 whatever happens."""


class LaneReadings(Struct):
    """The readings of one lane: of the work of one method, of one model, or of a server."""

    wall_s: Annotated[
        float | None, Meta(description="seconds of its work; null if that is not known")
    ] = None
    thread_s: Annotated[
        float | None,
        Meta(description="seconds in which its thread had a processor; null if that is not known"),
    ] = None
    process_s: Annotated[
        float | None,
        Meta(
            description="seconds in which its process had processors, all threads together; null if that is "
            "not known"
        ),
    ] = None
    others_s: Annotated[
        float | None,
        Meta(
            description="processor seconds of processes that worked for it; null if they run on another "
            "machine"
        ),
    ] = None
    cpu_share: Annotated[
        float | None,
        Meta(
            description="share of its work in which its thread, or processes that worked for it, had a "
            "processor; null on a GPU, whose thread may wait for the device, and if that is not "
            "known"
        ),
    ] = None
    spread: Annotated[
        float | None,
        Meta(
            description="90th / 10th percentile of the times of identical steps; null if none was repeated "
            "often enough"
        ),
    ] = None
    steps: Annotated[int, Meta(description="identical steps that the spread is over")] = 0
    uncounted_s: Annotated[
        float, Meta(description="seconds of its work that the run's clock left out")
    ] = 0.0


class ControlReading(Struct):
    """The speed of plain decoding beside itself."""

    speed: Annotated[float, Meta(description="the one / the other on a typical prompt, a factor")]
    interval: Annotated[tuple[float, float], Meta(description="95% interval of 'speed'")]
    speed_in_all: Annotated[
        float | None,
        Meta(
            description="ratio of the summed times, which one request that was held up may move; null in "
            "files of earlier versions"
        ),
    ] = None
    prompts: Annotated[
        int | None,
        Meta(description="independent prompts that were timed; null in files of earlier versions"),
    ] = None


class MachineReadings(Struct):
    """What one process that timed something saw of the machine."""

    device: Annotated[
        str | None, Meta(description="torch device of the models; null if that is not known")
    ] = None
    threads: Annotated[
        int | None, Meta(description="threads of torch; null if that is not known")
    ] = None
    cpus: Annotated[
        int | None, Meta(description="processors of the machine; null if that is not known")
    ] = None
    load: Annotated[
        tuple[float | None, float | None] | None,
        Meta(
            description="load average of the machine at the start and at the end, either null if not known; "
            "null if neither is known"
        ),
    ] = None
    steal: Annotated[
        float | None,
        Meta(
            description="share of the demanded processor seconds that the host withheld; null if too few were "
            "demanded"
        ),
    ] = None
    lanes: Annotated[
        dict[str, LaneReadings], Meta(description="readings of each lane, by name")
    ] = field(default_factory=dict)
    control: Annotated[
        ControlReading | None,
        Meta(
            description="speed of plain decoding beside itself; null if it was not decoded twice, or for too "
            "few prompts"
        ),
    ] = None
    injected: Annotated[
        str | None,
        Meta(
            description="file whose readings stand in for those of the machine; null if these were taken"
        ),
    ] = None


def read_machine(blocks: object) -> list[MachineReadings]:
    """Return the readings in the field `machine` of a `run.json`."""
    return convert(list[MachineReadings], blocks or [])


def disturbances(blocks: Sequence[MachineReadings]) -> list[str]:
    """Return a line for every limit that is exceeded, by its worst reading; none if the machine was
    quiet.
    """
    lines = []
    share, label = min(_cpu_shares(blocks), default=(1.0, ""))
    if share < LEAST_CPU_SHARE:
        lines.append(
            f"{label} had a processor for {share:.0%} of its time (at least {LEAST_CPU_SHARE:.0%})"
        )
    steal = max((block.steal for block in blocks if block.steal is not None), default=0.0)
    if steal > MOST_STEAL:
        lines.append(
            f"the host withheld {steal:.1%} of the processor time (at most {MOST_STEAL:.0%})"
        )
    spread, label = max(
        ((lane.spread, label) for label, lane in _lanes(blocks) if lane.spread is not None),
        default=(1.0, ""),
    )
    if spread > MOST_SPREAD:
        longer = f"{spread:.0f}" if spread >= 10 else f"{spread:.2g}"
        lines.append(
            f"the same step of {label} took up to {longer} times as long (at most {MOST_SPREAD:g})"
        )
    return lines


def control_of(blocks: Sequence[MachineReadings]) -> ControlReading | None:
    """Return how plain decoding came out beside itself on a typical prompt; None if a block has no
    control.

    Of several blocks it is the one that came out farthest from 1.
    """
    controls = [block.control for block in blocks if len(block.lanes) > 1]
    found = [control for control in controls if control]
    return (
        max(found, key=lambda control: abs(log(control.speed)))
        if found and len(found) == len(controls)
        else None
    )


def ratios_hold(blocks: Sequence[MachineReadings]) -> bool:
    """Return whether ratios of methods that took turns are to be trusted, although the machine was
    disturbed.

    Plain decoding beside itself must have come out at 1, all lanes must have had their share of a
    processor, and the host must not have withheld much.
    """
    control = control_of(blocks)
    if control is None:
        return False
    low, high = control.interval
    shares = [share for share, _ in _cpu_shares(blocks)]
    steal = max((block.steal for block in blocks if block.steal is not None), default=0.0)
    return (
        low <= 1 <= high <= WIDEST_CONTROL * low
        and max(shares, default=1.0) - min(shares, default=1.0) <= MOST_UNEVEN
        and steal <= MOST_STEAL_OF_RATIOS
    )


def _lanes(blocks: Sequence[MachineReadings]) -> list[tuple[str, LaneReadings]]:
    return [lane for block in blocks for lane in block.lanes.items()]


def _cpu_shares(blocks: Sequence[MachineReadings]) -> list[tuple[float, str]]:
    """Return the processor share of every lane that has one, with the lane's label."""
    return [(lane.cpu_share, label) for label, lane in _lanes(blocks) if lane.cpu_share is not None]
