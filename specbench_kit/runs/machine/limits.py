"""The limits beyond which a machine counts as disturbed, so that times taken on it should not be quoted.

Readings are blocks, one for each process that timed something, as `Watch.end` makes them.
"""

from collections.abc import Sequence

from specbench_kit.core.typed_json import JsonObject

LEAST_CPU_SHARE = 0.9
"""Least share of the time in which the timing thread had a processor. It never waits by itself on a CPU."""
MOST_STEAL = 0.02
"""Largest share of the demanded processor seconds that the host may withhold, over all processors."""
MOST_SPREAD = 2.0
"""Largest ratio of the 90th to the 10th percentile of the seconds of identical steps.

On two idle cores the bundled pair, whose steps take a millisecond, shows 1.2 to 1.6. A machine that is shared evenly
shows hardly more: the processor share reveals it.
"""


def disturbances(blocks: Sequence[JsonObject]) -> list[str]:
    """Return a line for every limit that is exceeded, by its worst reading; none if the machine was quiet."""
    lines = []
    share, label = min(_lane_readings(blocks, "cpu_share"), default=(1.0, ""))
    if share < LEAST_CPU_SHARE:
        lines.append(f"{label} had a processor for {share:.0%} of its time (at least {LEAST_CPU_SHARE:.0%})")
    steal = max((block["steal"] for block in blocks if block.get("steal") is not None), default=0.0)
    if steal > MOST_STEAL:
        lines.append(f"the host withheld {steal:.1%} of the processor time (at most {MOST_STEAL:.0%})")
    spread, label = max(_lane_readings(blocks, "spread"), default=(1.0, ""))
    if spread > MOST_SPREAD:
        lines.append(f"the same step of {label} took up to {spread:.2g} times as long (at most {MOST_SPREAD:g})")
    return lines


def _lane_readings(blocks: Sequence[JsonObject], name: str) -> list[tuple[float, str]]:
    """Return the reading `name` of every lane that has one, with the lane's label."""
    return [
        (lane[name], label)
        for block in blocks
        for label, lane in block.get("lanes", {}).items()
        if lane.get(name) is not None
    ]
