"""From when on a machine counts as disturbed, so that times taken on it are not to be quoted.

Readings are blocks, one for each process that timed something, as `Watch.end` makes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Fields = Mapping[str, Any]

LEAST_CPU_SHARE = 0.9
"""Seconds with a processor / seconds that passed, of the thread that times; it never waits by itself on a CPU."""
MOST_STEAL = 0.02
"""Processor seconds that the host withheld / processor seconds that were wanted, over all processors."""
MOST_SPREAD = 2.0
"""90th / 10th percentile of the seconds of one and the same step.

On two idle cores the bundled pair, whose steps take a millisecond, shows 1.2 to 1.6. A machine that is shared evenly
shows hardly more: that is seen by the processor share.
"""


def disturbances(blocks: Sequence[Fields]) -> list[str]:
    """Every limit that is passed, by its worst reading; nothing where the machine was quiet or no clock was read."""
    shares = _of_lanes(blocks, "cpu_share")
    steals = [block["steal"] for block in blocks if block.get("steal") is not None]
    spreads = _of_lanes(blocks, "spread")
    return [*_waited(shares), *_stolen(steals), *_uneven(spreads)]


def _of_lanes(blocks: Iterable[Fields], name: str) -> list[tuple[float, str]]:
    return [
        (lane[name], label)
        for block in blocks
        for label, lane in block.get("lanes", {}).items()
        if lane.get(name) is not None
    ]


def _waited(shares: Sequence[tuple[float, str]]) -> Iterator[str]:
    share, label = min(shares, default=(1.0, ""))
    if share < LEAST_CPU_SHARE:
        yield f"{label} had a processor for {share:.0%} of its time (at least {LEAST_CPU_SHARE:.0%})"


def _stolen(steals: Sequence[float]) -> Iterator[str]:
    steal = max(steals, default=0.0)
    if steal > MOST_STEAL:
        yield f"the host withheld {steal:.1%} of the processor time (at most {MOST_STEAL:.0%})"


def _uneven(spreads: Sequence[tuple[float, str]]) -> Iterator[str]:
    spread, label = max(spreads, default=(1.0, ""))
    if spread > MOST_SPREAD:
        yield f"the same step of {label} took up to {spread:.2g} times as long (at most {MOST_SPREAD:g})"
