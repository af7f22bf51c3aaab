"""Readings of the machine while the lanes of a benchmark take turns."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specbench_kit.decoding.clock import ProcessorTime
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import Method
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.runs.machine.steps import same_steps
from specbench_kit.runs.machine.watch import LaneTimes, Watch
from specbench_kit.studies.bench.lanes import MethodLane

MachineBlock = dict[str, Any]
"""One entry of `machine` in `run.json`: device, load and steal, and the readings of each lane by its name."""


class MachineMonitor:
    """Collects readings of every tracked lane over all repeats, beginning with its construction."""

    def __init__(self, probe: Probe, device: torch.device) -> None:
        self._watch = Watch(probe, device)
        self._lanes: dict[str, list[MethodLane]] = defaultdict(list)
        self._records: dict[str, list[RequestRecord]] = {}

    def track(self, lanes: Sequence[MethodLane], methods: Mapping[str, Method]) -> None:
        """Add the lanes of one repeat; `methods` maps the name of each lane to its method."""
        for lane in lanes:
            self._lanes[lane.name].append(lane)
            method = methods[lane.name]
            # The spread of step times is only meaningful if every verification is a forward of the same kind.
            if method.pipeline is None and not method.overlaps:
                lane.sinks = [*lane.sinks, self._records.setdefault(lane.name, []).append]

    def block(self) -> MachineBlock:
        """Return the readings up to now, ready for JSON; a lane's times are summed over its repeats."""
        times = {}
        for name, lanes in self._lanes.items():
            clocks = (lane.engine.clock.processor_time or () for lane in lanes)
            spent = ProcessorTime(*(sum(parts) for parts in zip(*clocks, strict=True)))
            worker_s = [lane.worker_s for lane in lanes if lane.worker_s is not None]
            observed = len(worker_s) == len(lanes)
            steps = same_steps(self._records.get(name, ()))
            times[name] = LaneTimes(spent, steps, sum(worker_s) if observed else None)
        return self._watch.end(times)
