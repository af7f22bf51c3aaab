"""Watch the machine while something is timed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

from specbench_kit.decoding.clock import ProcessorTime
from specbench_kit.runs.machine.probe import Probe, SystemCounters

Fields = dict[str, Any]

FEWEST = 5
"""Times that a step must have been repeated to be looked at."""
ENOUGH_S = 1.0
"""Processor seconds below which steal, counted in hundredths of a second, says nothing."""


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """What one lane took: the time, and the seconds of its steps, one list for each that was repeated.

    `others_s` are the processor seconds of the processes that worked for it; None where these are not ours to see.
    """

    effort: ProcessorTime
    steps: Sequence[Sequence[float]] = field(default=())
    others_s: float | None = 0.0

    def describe(self, device: torch.device) -> Fields:
        """Ready for JSON; `cpu_share` is only known of a CPU, whose thread has nothing to wait for."""
        spread, count = spread_of(self.steps)
        return {
            **self.effort._asdict(),
            "others_s": self.others_s,
            "cpu_share": self._share() if device.type == "cpu" else None,
            "spread": spread,
            "steps": count,
        }

    def _share(self) -> float | None:
        if self.others_s is None or not self.effort.wall_s:
            return None
        return (self.effort.thread_s + self.others_s) / self.effort.wall_s


class Watch:
    """Looks at the machine from now until `end`."""

    def __init__(self, probe: Probe, device: torch.device) -> None:
        self._probe, self._device = probe, device
        self._before = probe.system()

    def end(self, lanes: Mapping[str, LaneTimes]) -> Fields:
        """The readings since the start, ready for JSON: those of each lane, load average, and steal as a share."""
        after = self._probe.system()
        return self._probe.believed(
            {
                "device": str(self._device),
                "threads": torch.get_num_threads(),
                "cpus": os.cpu_count(),
                "load": [self._before.load, after.load],
                "steal": _steal(self._before, after),
                "lanes": {name: timed.describe(self._device) for name, timed in lanes.items()},
            }
        )


def spread_of(steps: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    """90th / 10th percentile of all repeated steps, each over the median of its kind, and how many these are."""
    repeated = [seconds for seconds in steps if len(seconds) >= FEWEST]
    relative = [one / typical for seconds in repeated if (typical := median(seconds)) for one in seconds]
    if not relative:
        return None, 0
    tenths = quantiles(relative, n=10, method="inclusive")
    return tenths[-1] / tenths[0], len(relative)


def _steal(before: SystemCounters, after: SystemCounters) -> float | None:
    wanted_s = after.wanted_s - before.wanted_s
    return (after.stolen_s - before.stolen_s) / wanted_s if wanted_s >= ENOUGH_S else None
