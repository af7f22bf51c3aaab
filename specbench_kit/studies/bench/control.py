"""The control of a measured benchmark: plain decoding takes another turn, as if it were a method of its own.

The two do the same work, so that the ratio of their times is what the machine makes of a ratio. Where it holds 1, a
busy machine has not upset the speedups, which compare methods that took turns in the same way.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import Ratio
from specbench_kit.studies.bench.conversations import ConversationScript
from specbench_kit.studies.bench.lanes import MethodLane

CONTROL = "plain decoding again"
PROMPTS = 8
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
        """Return the control's speed over plain decoding with its 95 % interval; None without enough prompts."""
        shared = [key for key in self._again_s if key in self._plain_s]
        prompts = list(dict.fromkeys(name for name, _ in shared))
        sums = [[sum(own[key] for key in shared if key[0] == name) for name in prompts] for own in self._both]
        ratio = Ratio.of([sums[0]], [sums[1]]) if prompts else None
        interval = ratio.interval() if ratio else None
        return {"speed": ratio.value, "interval": interval, "prompts": len(prompts)} if ratio and interval else None

    @property
    def _both(self) -> Iterable[Mapping[tuple[str, int], float]]:
        return self._plain_s, self._again_s


def _note(seconds: dict[tuple[str, int], float], record: RequestRecord) -> None:
    if record.e2e_s:
        seconds[record.key] = record.e2e_s
