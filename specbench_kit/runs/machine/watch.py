"""Watch the machine while something is timed: its readings, and how far the times of identical
steps are apart.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median, quantiles
from typing import NamedTuple

import torch

from specbench_kit.decoding.clock import ProcessorTime
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs.machine.limits import LaneReadings, MachineReadings
from specbench_kit.runs.machine.probe import Probe

FEWEST = 5
"""Least number of repetitions of a step whose spread is looked at."""
ENOUGH_S = 1.0
"""Processor seconds below which steal, counted in hundredths of a second, is not computed."""


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """The times of one lane: of all its work, and of each kind of repeated step.

    `children_s` are the processor seconds of the processes that worked for it; None if they run on another machine.
    `uncounted_s` are seconds of its work that the run's clock left out.
    """

    effort: ProcessorTime
    steps: Sequence[Sequence[float]] = field(default=())
    children_s: float | None = 0.0
    uncounted_s: float = 0.0

    def readings(self, device: torch.device) -> LaneReadings:
        """Return the readings of a lane whose models run on a device."""
        spread, count = spread_of(self.steps)
        share = None
        if device.type == "cpu" and self.children_s is not None and self.effort.wall_s:
            share = (self.effort.thread_s + self.children_s) / self.effort.wall_s
        return LaneReadings(*self.effort, self.children_s, share, spread, count, self.uncounted_s)


class Watch:
    """Observes the machine from its creation until `end`."""

    def __init__(self, probe: Probe, device: torch.device) -> None:
        self._probe = probe
        self._device = device
        self._before = probe.system()

    def end(self, lanes: Mapping[str, LaneTimes]) -> MachineReadings:
        """Return the readings since the start: those of each lane, the load average, and steal as a
        share.
        """
        after = self._probe.system()
        wanted_s = after.wanted_s - self._before.wanted_s
        stolen_s = after.stolen_s - self._before.stolen_s
        readings = MachineReadings(
            device=str(self._device),
            threads=torch.get_num_threads(),
            cpus=os.cpu_count(),
            load=(self._before.load, after.load),
            steal=stolen_s / wanted_s if wanted_s >= ENOUGH_S else None,
            lanes={name: times.readings(self._device) for name, times in lanes.items()},
        )
        return self._probe.adjusted(readings)


def spread_of(steps: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    """Return the ratio of the 90th to the 10th percentile of all repeated steps, and their number.

    Each step is divided by the median of its kind, so that steps of different kinds can be pooled.
    """
    repeated = [seconds for seconds in steps if len(seconds) >= FEWEST]
    relative = [
        step_s / typical_s
        for seconds in repeated
        if (typical_s := median(seconds))
        for step_s in seconds
    ]
    if not relative:
        return None, 0
    tenths = quantiles(relative, n=10, method="inclusive")
    return tenths[-1] / tenths[0], len(relative)


CONTEXT = 32
"""Width in cached tokens per request of the classes within which steps count as identical."""
DIGITS = 7
"""Decimals of a moment in seconds: requests of one batch commit at the same moment, up to
rounding.
"""


class _StepShare(NamedTuple):
    """One request's part in a step."""

    is_prompt: bool
    submitted: int
    cached: int
    verify_s: float


def same_steps(records: Iterable[RequestRecord]) -> list[list[float]]:
    """Return verification seconds, one list for each kind of step; steps that include a prompt are
    left out.
    """
    steps: dict[float, list[_StepShare]] = defaultdict(list)
    for record in records:
        arrived_s = (record.finished_s or 0.0) - (record.e2e_s or 0.0)
        cached_tokens = accumulate(
            (step.committed + step.forced for step in record.rounds),
            initial=len(record.prompt_ids) + record.forced_first,
        )
        forced = 0
        for number, (step, cached) in enumerate(zip(record.rounds, cached_tokens, strict=False)):
            # Requests that were verified in one batch end their rounds at the same moment of the
            # run's clock.
            moment_s = round(arrived_s + step.end_s, DIGITS)
            # Forced tokens of the round before are computed with what this round verifies.
            computed = step.submitted + forced
            steps[moment_s].append(_StepShare(number == 0, computed, cached, step.verify_s))
            forced = step.forced
    kinds: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for shares in steps.values():
        if not any(share.is_prompt for share in shares):
            context = sum(share.cached for share in shares) // (CONTEXT * len(shares))
            kind = len(shares), sum(share.submitted for share in shares), context
            kinds[kind].append(sum(share.verify_s for share in shares))
    return list(kinds.values())
