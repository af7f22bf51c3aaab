"""Time that counts: what a process prepares once, such as a captured graph, is no part of what is
measured.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import NamedTuple


class _State(NamedTuple):
    """The seconds left out so far, and the moment at which time stands still; None while it goes
    on.
    """

    uncounted_s: float = 0.0
    stopped_s: float | None = None


class _Stopwatch:
    """Leaves seconds out; while somebody prepares something, time stands still for everybody."""

    def __init__(self) -> None:
        # Replaced as a whole, so that whoever reads the time needs no lock.
        self.state = _State()
        self._lock = Lock()
        self._depth = 0

    def counted_s(self) -> float:
        """Return the seconds that count."""
        uncounted_s, stopped_s = self.state
        return (perf_counter() if stopped_s is None else stopped_s) - uncounted_s

    def stop(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self.state = self.state._replace(stopped_s=perf_counter())

    def go_on(self) -> None:
        with self._lock:
            self._depth -= 1
            uncounted_s, stopped_s = self.state
            if not self._depth and stopped_s is not None:
                self.state = _State(uncounted_s + perf_counter() - stopped_s)


_stopwatch = _Stopwatch()


def counted_s() -> float:
    """Return this machine's seconds, less those inside `not_counted`; only differences have a
    meaning.
    """
    return _stopwatch.counted_s()


def uncounted_s() -> float:
    """Return the seconds that this process has spent inside `not_counted`, without one that has not
    ended.
    """
    return _stopwatch.state.uncounted_s


@contextmanager
def not_counted() -> Iterator[None]:
    """Leave the time inside out of what clocks measure.

    It is for work that is done once and that a server would have done before its first request.
    """
    _stopwatch.stop()
    try:
        yield
    finally:
        _stopwatch.go_on()
