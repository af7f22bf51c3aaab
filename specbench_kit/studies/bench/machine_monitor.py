"""What a benchmark notes of the machine while its lanes take turns."""

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

Fields = dict[str, Any]


class MachineMonitor:
    """The readings of every lane since this was made, over all repeats."""

    def __init__(self, probe: Probe, device: torch.device) -> None:
        self._watch = Watch(probe, device)
        self._lanes: dict[str, list[MethodLane]] = defaultdict(list)
        self._records: dict[str, list[RequestRecord]] = {}

    def track(self, lanes: Sequence[MethodLane], methods: Mapping[str, Method]) -> None:
        """Note what the lanes of a repeat do from here on; `methods` are theirs by name."""
        for lane in lanes:
            self._lanes[lane.name].append(lane)
            method = methods[lane.name]
            if method.pipeline is None and not method.overlaps:  # whose verifications are not forwards of one kind
                lane.sinks = [*lane.sinks, self._records.setdefault(lane.name, []).append]

    def block(self) -> Fields:
        """The readings up to now, ready for JSON."""
        return self._watch.end({name: self._timed(name) for name in self._lanes})

    def _timed(self, name: str) -> LaneTimes:
        lanes = self._lanes[name]
        spent = ProcessorTime(
            *(sum(parts) for parts in zip(*(lane.engine.clock.processor_time or () for lane in lanes), strict=True))
        )
        others = [lane.others_s for lane in lanes]
        known = [one for one in others if one is not None]
        return LaneTimes(
            spent, same_steps(self._records.get(name, ())), sum(known) if len(known) == len(others) else None
        )
