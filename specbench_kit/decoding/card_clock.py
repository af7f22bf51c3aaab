"""The clock of a GPU: phases are marked on the card by events, which the host reads once per
round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from specbench_kit.core.counted_time import counted_s, uncounted_s
from specbench_kit.decoding.clock import MeasuringClock, Phase


def measuring_clock(
    device: torch.device, started_s: float = 0.0, others: Iterable[torch.device] = ()
) -> MeasuringClock:
    """Return the clock that measures what is computed on a device, and on `others` if models are
    spread.
    """
    cards = [each for each in dict.fromkeys((device, *others)) if each.type == "cuda"]
    return CardClock(cards[0], started_s, cards[1:]) if cards else MeasuringClock(device, started_s)


class _Span(NamedTuple):
    """The time up to mark `end` from the one before it, which belongs to a phase."""

    phase: Phase
    label: str
    end: int


@dataclass(frozen=True, slots=True)
class _Duration:
    """A phase from the mark at which it was entered to the one at which it was left."""

    phase: Phase
    entered: int
    left: int
    resumed: bool


class CardClock(MeasuringClock):
    """Measures phases by events on a card's stream: a kernel's time belongs to the phase in which
    it was launched.

    The host waits for the card where times are asked for, which a loop does at the end of each
    round, and not at every beginning and end of a phase. Until then `typical_s` knows the rounds
    before. A mark is reached when all that was launched on the `others` before it is done too.
    """

    def __init__(
        self, device: torch.device, started_s: float = 0.0, others: Sequence[torch.device] = ()
    ) -> None:
        super().__init__(device, started_s)
        self._others = others
        self._events: list[torch.cuda.Event] = []
        """Events that were made so far, of which the first `_marks` were recorded since the last
        settlement.
        """
        self._uncounted_s: list[float] = []
        """The seconds that had been left out when each of them was recorded: on the card they have
        passed.
        """
        self._marks = 0
        self._first_s = 0.0
        """When the first of them was recorded; the card had nothing to do then."""
        self._spans: list[_Span] = []
        self._durations: list[_Duration] = []
        self._entered: list[tuple[Phase, int]] = []

    def enter(self, phase: Phase) -> None:
        self._entered.append((phase, self._mark()))

    def leave(self, resumed: bool, typical: bool) -> None:
        left = self._mark()
        phase, entered = self._entered.pop()
        if typical:
            self._durations.append(_Duration(phase, entered, left, resumed))
        if resumed:
            self._settle()  # what a verifier elsewhere reports is set against these times at once

    def split(
        self,
        phase: Phase,
        seconds: float,
        charged_s: float,
        parts: Iterable[tuple[Phase, float, int]],
    ) -> None:
        self._settle()  # so that the phase's beginning is known
        super().split(phase, seconds, charged_s, parts)

    def take(self) -> dict[Phase, float]:
        self._settle()
        return super().take()

    def _mark(self) -> int:
        """Mark this moment on the card, and return the number of the mark."""
        number = self._marks
        if number == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        if not number:
            self._first_s = counted_s()
            self._uncounted_s.clear()
        stream = torch.cuda.current_stream(self._device)
        for other in self._others:
            stream.wait_stream(torch.cuda.current_stream(other))
        self._events[number].record(stream)
        self._uncounted_s.append(uncounted_s())
        self._marks += 1
        if self._entered and number:
            phase = self._entered[-1][0]
            self._spans.append(_Span(phase, self.drafting if phase == "draft" else phase, number))
        return number

    def _settle(self) -> None:
        """Wait for the last mark, and charge all that lies before it."""
        if not self._marks:
            return
        self._events[self._marks - 1].synchronize()
        first, uncounted_before_s = self._events[0], self._uncounted_s[0]
        times_s = [
            self._first_s + first.elapsed_time(event) / 1000 - (uncounted_s - uncounted_before_s)
            for event, uncounted_s in zip(self._events, self._uncounted_s, strict=False)
        ]
        for phase, label, end in self._spans:
            self._phases[phase] += times_s[end] - times_s[end - 1]
            if self.timeline is not None and self._resumed_s is not None:
                began_s = self._resumed_s - self._elapsed_s
                self.mark(
                    str(self._device), label, times_s[end - 1] - began_s, times_s[end] - began_s
                )
        for duration in self._durations:
            phase = duration.phase
            left_s = times_s[duration.left]
            if duration.resumed:
                self._recent[phase][-1] = left_s - self._began_s[phase]
            else:
                self._began_s[phase] = times_s[duration.entered]
                self._recent[phase].append(left_s - self._began_s[phase])
        self._spans.clear()
        self._durations.clear()
        # Phases that are still open go on from here.
        self._marks = 0
        if self._entered:
            number = self._mark()
            self._entered = [(phase, number) for phase, _ in self._entered]

    def _read_synchronised_s(self) -> float:
        self._settle()
        return counted_s()
