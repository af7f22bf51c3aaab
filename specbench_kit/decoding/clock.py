"""The one clock: the only place that reads time or waits for a device."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from time import perf_counter, process_time, thread_time
from types import TracebackType
from typing import Literal, NamedTuple, Protocol

import torch

from specbench_kit.decoding.records import TimeKind
from specbench_kit.decoding.timeline import Timeline, TimelineMarker

Phase = Literal["prefill", "draft", "policy", "link", "queue", "verify", "commit"]


class ProcessorTime(NamedTuple):
    """Seconds that passed, that the calling thread had a processor, and that all threads of this process had one."""

    wall_s: float
    thread_s: float
    process_s: float

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        """What was spent from then to now."""
        return ProcessorTime(self[0] - before[0], self[1] - before[1], self[2] - before[2])

    def plus(self, more: "ProcessorTime") -> "ProcessorTime":
        """The sum of two spells."""
        return ProcessorTime(self[0] + more[0], self[1] + more[1], self[2] + more[2])


def read_processor_time() -> ProcessorTime:
    """Counters of no meaning but by their difference."""
    return ProcessorTime(perf_counter(), thread_time(), process_time())


def monotonic_s() -> float:
    """This machine's seconds, of no meaning but by their difference."""
    return perf_counter()


NOTHING: AbstractContextManager[None] = nullcontext()


class Clock(Protocol):
    """What the loop asks of time, measured or modelled."""

    time_kind: TimeKind
    timeline: Timeline | None
    """Where the run's spans are kept, if they were asked for."""

    def mark(self, resource: str, label: str, start_s: float, end_s: float, *request_ids: str) -> None:
        """Note what a resource did from one moment of the run's clock to another."""

    def running(self) -> AbstractContextManager[None]:
        """Let time pass."""

    def now_s(self) -> float:
        """Seconds since the run began."""

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        """Charge the enclosed time to a phase.

        Time that is not `typical`, such as a verification with a prompt in it, is no guide to the next one.
        """

    def overlap(self) -> AbstractContextManager[None]:
        """Let what is drafted inside be proactive: the drafts of the round were sent."""

    def resume(self, phase: Phase, *, asynchronous: bool, typical: bool = True) -> AbstractContextManager[None]:
        """Charge the enclosed wait to a phase that goes on elsewhere since it was left; not `apart`, it had ended.

        Such a phase was gone through all the while, though what lies between is charged to whatever ran here.
        """

    def take(self) -> dict[Phase, float]:
        """Seconds per phase since the last call."""

    def typical_s(self, phase: Phase) -> float:
        """Median seconds of the last few typical times that a phase was gone through; 0 before the first."""

    @property
    def processor_time(self) -> ProcessorTime | None:
        """What the finished spells of `running` took; None where no clock is read."""


def _recent() -> defaultdict[Phase, deque[float]]:
    """The last few durations of every phase."""
    return defaultdict(lambda: deque(maxlen=15))


class ModelledClock(TimelineMarker):
    """Time that passes only where a model says how long something takes."""

    time_kind: TimeKind = "modelled"
    processor_time = None

    def __init__(self, started_s: float = 0.0) -> None:
        self._now_s = started_s
        self._phases: defaultdict[Phase, float] = defaultdict(float)
        self._recent = _recent()

    def running(self) -> AbstractContextManager[None]:
        return NOTHING

    def now_s(self) -> float:
        return self._now_s

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        return NOTHING

    def resume(self, phase: Phase, *, asynchronous: bool, typical: bool = True) -> AbstractContextManager[None]:
        return NOTHING

    def charge(self, phase: Phase, seconds: float, times: int = 1, *, typical: bool = True) -> None:
        """Count a phase's modelled time, which may run beside another's; `times` it was gone through for that."""
        self._phases[phase] += seconds
        if typical:
            self._recent[phase].append(seconds / times)

    def typical_s(self, phase: Phase) -> float:
        return median(self._recent[phase] or (0.0,))

    def wait_until(self, now_s: float) -> None:
        """Let time pass up to a moment."""
        self._now_s = max(self._now_s, now_s)

    def take(self) -> dict[Phase, float]:
        taken, self._phases = self._phases, defaultdict(float)
        return taken


class MeasuringClock(TimelineMarker):
    """Time of this machine, which runs only inside `running`; a phase inside a phase stops the outer one."""

    time_kind: TimeKind = "measured"

    def __init__(self, device: torch.device, started_s: float = 0.0) -> None:
        self._device = device
        self._read_s = perf_counter if device.type != "cuda" else self._synchronised_s
        self.processor_time: ProcessorTime = ProcessorTime(0.0, 0.0, 0.0)
        self._elapsed_s = started_s
        self._resumed_s: float | None = None
        self._phases: defaultdict[Phase, float] = defaultdict(float)
        self._recent = _recent()
        self._open: list[tuple[Phase, float]] = []
        self._began_s: dict[Phase, float] = {}
        self._mark_s = 0.0
        self._spells: dict[tuple[Phase, bool, bool], _Spell] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let time pass."""
        before = read_processor_time()
        self._resumed_s = before.wall_s
        try:
            yield
        finally:
            self._elapsed_s += self._read_s() - self._resumed_s
            self._resumed_s = None
            self.processor_time = self.processor_time.plus(read_processor_time().since(before))

    def now_s(self) -> float:
        """Seconds that have passed while running."""
        return self._elapsed_s + (perf_counter() - self._resumed_s if self._resumed_s is not None else 0.0)

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        """Charge the enclosed time to a phase."""
        return self._spells.get((phase, False, typical)) or self._spell(phase, False, typical)

    def resume(self, phase: Phase, *, asynchronous: bool, typical: bool = True) -> AbstractContextManager[None]:
        """Charge the enclosed wait to a phase that goes on elsewhere since it was left."""
        return self._spell(phase, True, typical) if asynchronous else NOTHING

    def take(self) -> dict[Phase, float]:
        """Seconds per phase since the last call."""
        taken, self._phases = self._phases, defaultdict(float)
        return taken

    def split(self, phase: Phase, seconds: float, charged_s: float, parts: Iterable[tuple[Phase, float, int]]) -> None:
        """Say of a phase that goes on elsewhere, and was charged `charged_s` here, how long it took by itself.

        `parts` are the phases that lay in it, with their seconds and how many times each was gone through for that.
        They may have run beside what was done here.
        """
        self._phases[phase] += seconds - charged_s
        for part, part_s, times in parts:
            self._phases[part] += part_s
            self._recent[part].append(part_s / times)
            self._began_s[phase] = self._began_s.get(phase, 0.0) + part_s

    def enter(self, phase: Phase) -> None:
        """Start charging a phase."""
        self._charge()
        self._open.append((phase, self._mark_s))

    def leave(self, resumed: bool, typical: bool) -> None:
        """Go back to charging the phase outside."""
        self._charge()
        phase, entered_s = self._open.pop()
        if not typical:
            return
        if resumed:
            self._recent[phase][-1] = self._mark_s - self._began_s[phase]
        else:
            self._began_s[phase] = entered_s
            self._recent[phase].append(self._mark_s - entered_s)

    def typical_s(self, phase: Phase) -> float:
        """Median seconds of the last few typical times that a phase was gone through; 0 before the first."""
        return median(self._recent[phase] or (0.0,))

    def _spell(self, phase: Phase, resumed: bool, typical: bool) -> "_Spell":
        return self._spells.setdefault((phase, resumed, typical), _Spell(self, phase, resumed, typical))

    def _charge(self) -> None:
        now_s = self._read_s()
        if self._open:
            phase = self._open[-1][0]
            self._phases[phase] += now_s - self._mark_s
            if self.timeline is not None and self._resumed_s is not None:
                began_s = self._resumed_s - self._elapsed_s
                label = self.drafting if phase == "draft" else phase
                self.mark(str(self._device), label, self._mark_s - began_s, now_s - began_s)
        self._mark_s = now_s

    def _synchronised_s(self) -> float:
        torch.cuda.synchronize(self._device)
        return perf_counter()


class _Spell(AbstractContextManager[None]):
    """Made once for all times that a phase is gone through, several times a round; a generator would be slower."""

    __slots__ = ("_clock", "_phase", "_resumed", "_typical")

    def __init__(self, clock: MeasuringClock, phase: Phase, resumed: bool, typical: bool) -> None:
        self._clock, self._phase, self._resumed, self._typical = clock, phase, resumed, typical

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._clock.leave(self._resumed, self._typical)
