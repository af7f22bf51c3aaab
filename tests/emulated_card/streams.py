"""Streams and events: what the host may read, and which stream may use what another one wrote.

Work is computed when it is given to a stream. What a GPU would have finished only later is kept back: copies to the
host arrive when their stream, or an event after them, is waited for.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from emulated_card.counts import calling_place

if TYPE_CHECKING:
    from emulated_card.cards import Card, MemoryBlock


class Stream:
    """A queue of work on a card: `position` counts what was given to it, `done` what the host knows to be finished."""

    def __init__(self, card: "Card") -> None:
        self.card, self.position, self.done = card, 0, 0
        self._waited_for: dict[Stream, int] = {}
        """How far each other stream was when this one was told to wait for it."""
        self._arriving: list[tuple[int, Callable[[], None]]] = []
        """Copies between this stream and the host that are under way, each with its position."""

    def is_capturing(self) -> bool:
        """Return True while what is put on the stream goes into a graph."""
        return self.card.capture is not None and self is self.card.stream

    def use(self, reads: "Sequence[MemoryBlock]", writes: "Sequence[MemoryBlock]") -> None:
        """Put work on the stream; raise RuntimeError if it uses what another stream may still be working on."""
        self.position += 1
        for block in writes:
            for stream, position in block.readers.items():
                self._require(stream, position, "overwritten while it is read")
        for block in (*reads, *writes):
            if block.writer is not None:
                self._require(*block.writer, "used before it was written")
        for block in reads:
            block.readers[self] = self.position
        for block in writes:
            block.writer = (self, self.position)
            block.readers.clear()

    def deliver_later(self, deliver: Callable[[], None]) -> None:
        """Run a function as soon as the host waits for what is on the stream by now."""
        self._arriving.append((self.position, deliver))

    def deliver(self, position: int) -> None:
        """Finish all that was given to the stream up to a position."""
        self.done = max(self.done, position)
        arrived = [copy for copy in self._arriving if copy[0] <= position]
        self._arriving = [copy for copy in self._arriving if copy[0] > position]
        for _, deliver in arrived:
            deliver()

    def follow(self, other: "Stream", position: int) -> None:
        """Let further work wait until another stream has come to a position."""
        self._waited_for[other] = max(position, self._waited_for.get(other, 0))
        for stream, further in other._waited_for.items():
            self._waited_for[stream] = max(further, self._waited_for.get(stream, 0))

    def _require(self, other: "Stream", position: int, fault: str) -> None:
        if other is not self and self._waited_for.get(other, 0) < position:
            raise RuntimeError(
                f"memory of {self.card.device} was {fault} on another stream, at {calling_place()}"
            )

    def wait_stream(self, other: "Stream") -> None:
        """Let further work wait for all that is on another stream."""
        self.follow(other, other.position)

    def wait_event(self, event: "Event") -> None:
        """Let further work wait for an event."""
        event.wait(self)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Mark the end of what is on the stream by now."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Let the host wait for all that is on the stream."""
        self.card.note("synchronise")
        self.deliver(self.position)

    def query(self) -> bool:
        """Return whether the stream has nothing left to do, which here is so as soon as somebody asks."""
        self.deliver(self.position)
        return True


class Event:
    """A position in a stream, in place of torch.cuda.Event."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self._timed, self._position, self._at_s = enable_timing, 0, 0.0
        self._stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of what is on a stream by now, by default on the current one."""
        self._stream = stream or _current()
        self._stream.position += 1
        self._position, self._at_s = self._stream.position, perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Let further work on a stream wait for the event."""
        if self._stream is not None:
            (stream or _current()).follow(self._stream, self._position)

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        if self._stream is not None:
            self._stream.card.note("synchronise")
            self._stream.deliver(self._position)

    def query(self) -> bool:
        """Return whether the event has happened, which here is so as soon as somebody asks."""
        if self._stream is not None:
            self._stream.deliver(self._position)
        return True

    def elapsed_time(self, end: "Event") -> float:
        """Return the milliseconds from this event to another; both are timed, and the host has waited for them."""
        if self._stream is None or end._stream is None or not (self._timed and end._timed):
            raise ValueError("Both events must be recorded, and created with enable_timing=True")
        if self._position > self._stream.done or end._position > end._stream.done:
            raise RuntimeError(
                f"CUDA error: device not ready: nobody waited for these events, at {calling_place()}"
            )
        return (end._at_s - self._at_s) * 1000


def _current() -> Stream:
    from emulated_card.machine import current_machine

    return current_machine().current_card.stream
