"""The control of a measured benchmark: plain decoding takes another turn, as if it were a method of its own.

The two do the same work, so that the ratio of their times is what the machine makes of a ratio. Where it holds 1, a
busy machine has not upset the speedups, which compare methods that took turns in the same way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.paired import Side, speedup
from specbench_kit.studies.bench.conversations import ConversationScript
from specbench_kit.studies.bench.lanes import MethodLane

CONTROL = "plain decoding again"
PROMPTS = 12
"""The prompts of each repeat that the control decodes: enough for an interval, and few beside a benchmark's."""


@dataclass
class Control:
    """Collects the times of plain decoding and of its control, request by request."""

    make_engine: Callable[[float], Loop]
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

        return MethodLane(CONTROL, self.make_engine(self._clock_s), script, plain.decode, [keep], repeat=plain.repeat)

    def reading(self) -> Mapping[str, object] | None:
        """Return the control's speed over plain decoding on a typical prompt; None without enough prompts.

        `speed_in_all` is the ratio of the summed times, which one held-up request may move.
        """
        shared = {key: seconds for key, seconds in self._again_s.items() if key in self._plain_s}
        units = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in shared))}
        speed = speedup(Side(shared, self._plain_s), units) if shared else None
        interval = speed.typical.interval() if speed else None
        if speed is None or interval is None:
            return None
        return {
            "speed": speed.typical.value,
            "interval": interval,
            "speed_in_all": speed.ratio.value,
            "prompts": speed.typical.units,
        }


def _note(seconds: dict[tuple[str, int], float], record: RequestRecord) -> None:
    if record.e2e_s:
        seconds[record.key] = record.e2e_s
