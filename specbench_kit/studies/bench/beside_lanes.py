"""What runs beside the lanes of a benchmark: a control, the same method at the server, and readings
of the machine.

The control is plain decoding that takes another turn, as if it were a method of its own. The server
decodes by itself what a device drafts for, which is the second baseline of a live run.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from specbench_kit.decoding.clock import ProcessorTime
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request
from specbench_kit.methods.base import Method
from specbench_kit.metrics.paired import Side, speedup
from specbench_kit.runs.document import OutputAgreement
from specbench_kit.runs.machine.limits import ControlReading, MachineReadings
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.runs.machine.watch import LaneTimes, Watch, same_steps
from specbench_kit.studies.bench.lanes import MethodLane
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.conversations import ConversationScript

CONTROL = "plain decoding again"
PROMPTS = 12
"""The prompts of each repeat that the control decodes: enough for an interval, and few beside a
benchmark's.
"""


@dataclass
class Control:
    """Collects the times of plain decoding and of its control, request by request."""

    make_loop: Callable[[float], Loop]
    """Makes a decoding loop of plain decoding whose clock starts at a time."""
    _plain_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _again_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _clock_s: float = 0.0

    def lane(self, plain: MethodLane, script: ConversationScript) -> MethodLane:
        """Watch the lane of plain decoding, and return that of the control."""
        plain.sinks = [*plain.sinks, lambda record: _note(self._plain_s, record)]

        def keep(record: RequestRecord) -> None:
            _note(self._again_s, record)
            self._clock_s = record.finished_s or 0.0

        return MethodLane(
            CONTROL,
            self.make_loop(self._clock_s),
            script,
            plain.decode,
            [keep],
            repeat=plain.repeat,
        )

    def reading(self) -> ControlReading | None:
        """Return the control's speed over plain decoding on a typical prompt; None without enough
        prompts.
        """
        shared = {key: seconds for key, seconds in self._again_s.items() if key in self._plain_s}
        names = dict.fromkeys(name for name, _ in shared)
        units = {name: number for number, name in enumerate(names)}
        speed = speedup(Side(shared, self._plain_s), units) if shared else None
        interval = speed.typical.interval() if speed else None
        if speed is None or interval is None:
            return None
        return ControlReading(
            speed.typical.value, (interval[0], interval[1]), speed.ratio.value, speed.typical.units
        )


def _note(seconds: dict[tuple[str, int], float], record: RequestRecord) -> None:
    if record.e2e_s:
        seconds[record.key] = record.e2e_s


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
            # The spread of step times is only meaningful if every verification is a forward of the
            # same kind.
            if method.pipeline is None and not method.overlaps:
                lane.sinks = [*lane.sinks, self._records.setdefault(lane.name, []).append]

    def readings(self) -> MachineReadings:
        """Return the readings up to now; a lane's times are summed over its repeats."""
        times = {}
        for name, lanes in self._lanes.items():
            clocks = (lane.loop.clock.processor_time or () for lane in lanes)
            spent = ProcessorTime(*(sum(parts) for parts in zip(*clocks, strict=True)))
            worker_s = [lane.worker_s for lane in lanes if lane.worker_s is not None]
            observed = len(worker_s) == len(lanes)
            steps = same_steps(self._records.get(name, ()))
            uncounted_s = sum(lane.loop.clock.uncounted_s for lane in lanes)
            times[name] = LaneTimes(spent, steps, sum(worker_s) if observed else None, uncounted_s)
        return self._watch.end(times)


class ServerOnly:
    """Lets the server decode each request by itself before a device drafts for it, where the server
    offers the method.

    The records of the method then hold how long that took, as those of a modelled run do.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self.counts: dict[str, OutputAgreement] = defaultdict(OutputAgreement)
        """Counts by spec, for the methods that the server offers."""
        self._clocks_s: dict[str, float] = {}

    def lanes(self, lane: MethodLane, script: ConversationScript) -> list[MethodLane]:
        """Return a method's lane, after the one of the server if there is one; `script` is for the
        server's.
        """
        loop = self._bench.server_only_loop(lane.name, self._clocks_s.get(lane.name, 0.0))
        if loop is None:
            return [lane]
        records: dict[str, RequestRecord] = {}

        def keep(record: RequestRecord) -> None:
            records[record.request_id] = record
            self._clocks_s[lane.name] = record.finished_s or 0.0

        def complete(record: RequestRecord) -> None:
            server = records[record.request_id]
            counts = self.counts[lane.name]
            record.colocated_s = server.e2e_s
            record.colocated_draft_s = sum(step.draft_s for step in server.rounds)
            counts.compared += 1
            counts.identical += server.output_ids == record.output_ids

        name = f"{lane.name}, server-only"
        server_lane = MethodLane(name, loop, script, lane.decode, [keep], repeat=lane.repeat)
        lane.after = records
        lane.sinks = [complete, *lane.sinks]
        return [server_lane, lane]

    def warm_up(self, spec: str, request: Request) -> None:
        """Decode a request whose time does not count."""
        loop = self._bench.server_only_loop(spec)
        if loop is not None:
            loop.submit(request)
            while not loop.idle:
                loop.step()
