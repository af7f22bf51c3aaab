"""The run's clock: only this module reads time, and every second of a round is charged to a phase
here.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from time import perf_counter, process_time, thread_time
from types import TracebackType
from typing import Literal, NamedTuple, Protocol

import torch

from specbench_kit.core.counted_time import counted_s, uncounted_s
from specbench_kit.decoding.records import TimeKind
from specbench_kit.decoding.timeline import Timeline, TimelineMarker

Phase = Literal["prefill", "draft", "policy", "link", "queue", "verify", "commit"]
RECENT = 15
"""Durations of a phase over which `typical_s` takes the median: few enough to follow a growing
context.
"""
NO_PHASE: AbstractContextManager[None] = nullcontext()


class ProcessorTime(NamedTuple):
    """Seconds of wall time, of processor time of the calling thread, and of processor time of the
    whole process.
    """

    wall_s: float
    thread_s: float
    process_s: float

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        """Return the time spent between an earlier reading and this one."""
        return ProcessorTime(self[0] - before[0], self[1] - before[1], self[2] - before[2])

    def plus(self, more: "ProcessorTime") -> "ProcessorTime":
        """Return the sum of two stretches of time."""
        return ProcessorTime(self[0] + more[0], self[1] + more[1], self[2] + more[2])


def read_processor_time() -> ProcessorTime:
    """Return counters of which only differences have a meaning."""
    return ProcessorTime(perf_counter(), thread_time(), process_time())


def monotonic_s() -> float:
    """Return this machine's seconds, of which only differences have a meaning."""
    return perf_counter()


class Clock(Protocol):
    """The clock that an engine works by, whether time is measured or modelled."""

    time_kind: TimeKind
    timeline: Timeline | None
    """Collects the run's spans, if they were requested."""

    def mark(
        self, resource: str, label: str, start_s: float, end_s: float, *request_ids: str
    ) -> None:
        """Add what a resource did from one moment of the run's clock to another to the timeline."""

    def running(self) -> AbstractContextManager[None]:
        """Let time pass inside; the clock stands still outside."""

    def now_s(self) -> float:
        """Return the seconds since the run began."""

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        """Charge the enclosed time to a phase.

        Time that is not `typical`, such as a verification with a prompt in it, does not count for
        `typical_s`.
        """

    def overlap(self) -> AbstractContextManager[None]:
        """Label the drafting inside as proactive: the round's drafts were sent."""

    def resume(
        self, phase: Phase, *, asynchronous: bool, typical: bool = True
    ) -> AbstractContextManager[None]:
        """Resume a phase that runs in another process, to wait for its end; no-op unless
        `asynchronous`.

        Only the waiting is charged, but the phase lasts, for `typical_s`, from where it was first
        entered.
        """

    def take(self) -> dict[Phase, float]:
        """Return the seconds per phase since the last call."""

    def typical_s(self, phase: Phase) -> float:
        """Return the median duration of the phase's last few typical times; 0 before the first."""

    @property
    def processor_time(self) -> ProcessorTime | None:
        """The time spent inside `running`; None if the clock is modelled."""

    @property
    def uncounted_s(self) -> float:
        """The seconds inside `running` that were left out, since something was prepared in them."""


def _recent_durations() -> defaultdict[Phase, deque[float]]:
    return defaultdict(lambda: deque(maxlen=RECENT))


class ModelledClock(TimelineMarker):
    """Time that passes only where a model says how long something takes."""

    time_kind: TimeKind = "modelled"
    processor_time = None
    uncounted_s = 0.0

    def __init__(self, started_s: float = 0.0) -> None:
        self._now_s = started_s
        self._phases: defaultdict[Phase, float] = defaultdict(float)
        self._recent = _recent_durations()

    def running(self) -> AbstractContextManager[None]:
        return NO_PHASE

    def now_s(self) -> float:
        return self._now_s

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        return NO_PHASE

    def resume(
        self, phase: Phase, *, asynchronous: bool, typical: bool = True
    ) -> AbstractContextManager[None]:
        return NO_PHASE

    def charge(self, phase: Phase, seconds: float, times: int = 1, *, typical: bool = True) -> None:
        """Charge modelled seconds to a phase that took place `times` times; the clock itself does
        not advance.
        """
        self._phases[phase] += seconds
        if typical:
            self._recent[phase].append(seconds / times)

    def typical_s(self, phase: Phase) -> float:
        return median(self._recent[phase] or (0.0,))

    def wait_until(self, now_s: float) -> None:
        """Advance the clock to a moment, unless it is past it already."""
        self._now_s = max(self._now_s, now_s)

    def take(self) -> dict[Phase, float]:
        phases = self._phases
        self._phases = defaultdict(float)
        return phases


class MeasuringClock(TimelineMarker):
    """This machine's time, which passes only inside `running`; a phase inside a phase suspends the
    outer one.

    What is prepared once while the clock runs, such as a graph that is captured, is left out: see
    `not_counted`.
    """

    time_kind: TimeKind = "measured"

    def __init__(self, device: torch.device, started_s: float = 0.0) -> None:
        self._device = device
        self._read_s = counted_s if device.type != "cuda" else self._read_synchronised_s
        self.processor_time: ProcessorTime = ProcessorTime(0.0, 0.0, 0.0)
        self.uncounted_s = 0.0
        """Seconds inside `running` that were left out."""
        self._elapsed_s = started_s
        self._resumed_s: float | None = None
        self._phases: defaultdict[Phase, float] = defaultdict(float)
        self._recent = _recent_durations()
        self._open: list[tuple[Phase, float]] = []
        """The phases that were entered and not yet left, outermost first, with the time when each
        was entered.
        """
        self._began_s: dict[Phase, float] = {}
        """When a phase was last entered anew; a resumed phase lasts from there."""
        self._mark_s = 0.0
        """All time up to this reading has been charged."""
        self._contexts: dict[tuple[Phase, bool, bool], _PhaseContext] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let time pass inside; the clock stands still outside."""
        before = read_processor_time()
        uncounted_before_s = uncounted_s()
        self._resumed_s = counted_s()
        try:
            yield
        finally:
            self._elapsed_s += self._read_s() - self._resumed_s
            self._resumed_s = None
            self.uncounted_s += uncounted_s() - uncounted_before_s
            self.processor_time = self.processor_time.plus(read_processor_time().since(before))

    def now_s(self) -> float:
        """Return the seconds that have passed while running."""
        return self._elapsed_s + (
            counted_s() - self._resumed_s if self._resumed_s is not None else 0.0
        )

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        """Charge the enclosed time to a phase."""
        return self._contexts.get((phase, False, typical)) or self._context(phase, False, typical)

    def resume(
        self, phase: Phase, *, asynchronous: bool, typical: bool = True
    ) -> AbstractContextManager[None]:
        """Resume a phase that runs in another process, to wait for its end; no-op unless
        `asynchronous`.
        """
        return self._context(phase, True, typical) if asynchronous else NO_PHASE

    def take(self) -> dict[Phase, float]:
        """Return the seconds per phase since the last call."""
        phases = self._phases
        self._phases = defaultdict(float)
        return phases

    def split(
        self,
        phase: Phase,
        seconds: float,
        charged_s: float,
        parts: Iterable[tuple[Phase, float, int]],
    ) -> None:
        """Correct a phase that ran elsewhere: it took `seconds` by itself, where `charged_s` were
        charged here.

        `parts` are phases inside it, such as the link, each with its seconds and how many times it took place. They
        may have run while this process did something else, so they are charged in addition to the wall time here.
        """
        self._phases[phase] += seconds - charged_s
        for part, part_s, times in parts:
            self._phases[part] += part_s
            self._recent[part].append(part_s / times)
            # What the parts took is no time of the phase itself: it counts as begun that much
            # later.
            self._began_s[phase] = self._began_s.get(phase, 0.0) + part_s

    def enter(self, phase: Phase) -> None:
        """Start charging a phase, in place of the one around it."""
        self._charge()
        self._open.append((phase, self._mark_s))

    def leave(self, resumed: bool, typical: bool) -> None:
        """Stop charging the innermost phase, and note its duration if it is typical."""
        self._charge()
        phase, entered_s = self._open.pop()
        if not typical:
            return
        if resumed:
            # When the phase was first left, only its first part was noted: now its whole duration
            # is known.
            self._recent[phase][-1] = self._mark_s - self._began_s[phase]
        else:
            self._began_s[phase] = entered_s
            self._recent[phase].append(self._mark_s - entered_s)

    def typical_s(self, phase: Phase) -> float:
        """Return the median duration of the phase's last few typical times; 0 before the first."""
        return median(self._recent[phase] or (0.0,))

    def _context(self, phase: Phase, resumed: bool, typical: bool) -> "_PhaseContext":
        return self._contexts.setdefault(
            (phase, resumed, typical), _PhaseContext(self, phase, resumed, typical)
        )

    def _charge(self) -> None:
        """Charge the time since the last reading to the innermost open phase."""
        now_s = self._read_s()
        if self._open:
            phase = self._open[-1][0]
            self._phases[phase] += now_s - self._mark_s
            if self.timeline is not None and self._resumed_s is not None:
                began_s = self._resumed_s - self._elapsed_s
                label = self.drafting if phase == "draft" else phase
                self.mark(str(self._device), label, self._mark_s - began_s, now_s - began_s)
        self._mark_s = now_s

    def _read_synchronised_s(self) -> float:
        # Kernels run on after their launch: without this wait their time would be charged to a
        # later phase.
        torch.cuda.synchronize(self._device)
        return counted_s()


class _PhaseContext(AbstractContextManager[None]):
    """Enters and leaves a phase; made once and reused, since a generator-based context would cost
    more every time.
    """

    __slots__ = ("_clock", "_phase", "_resumed", "_typical")

    def __init__(self, clock: MeasuringClock, phase: Phase, resumed: bool, typical: bool) -> None:
        self._clock = clock
        self._phase = phase
        self._resumed = resumed
        self._typical = typical

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clock.leave(self._resumed, self._typical)
