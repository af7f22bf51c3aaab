"""The limits beyond which a machine counts as disturbed, so that times taken on it should not be
quoted.

Readings are blocks, one for each process that timed something, as `Watch.end` makes them.
"""

from collections.abc import Sequence
from math import log

from msgspec import Struct, field

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
    """The readings of one lane; null where nothing can be said.

    They are the seconds of its work, those in which its thread and its process had a processor, and
    those of processes that worked for it, `others_s`; the `spread` of the times of identical
    `steps`, of which there are so many; and the seconds that its clock left out. On a GPU
    `cpu_share` is null: its thread may wait for the device.
    """

    wall_s: float | None = None
    thread_s: float | None = None
    process_s: float | None = None
    others_s: float | None = None
    cpu_share: float | None = None
    spread: float | None = None
    steps: int = 0
    uncounted_s: float = 0.0


class ControlReading(Struct):
    """The speed of plain decoding beside itself, on a typical prompt and by the ratio of the summed
    times.

    One request that was held up may move the latter.
    """

    speed: float
    interval: tuple[float, float]
    speed_in_all: float | None = None
    prompts: int | None = None


class MachineReadings(Struct):
    """What one process that timed something saw of the machine: `load` at its start and its end,
    `steal` as a share.

    `injected` names the file whose readings stand in for those of the machine.
    """

    device: str | None = None
    threads: int | None = None
    cpus: int | None = None
    load: tuple[float | None, float | None] | None = None
    steal: float | None = None
    lanes: dict[str, LaneReadings] = field(default_factory=dict)
    control: ControlReading | None = None
    injected: str | None = None


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
