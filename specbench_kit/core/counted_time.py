"""Time that counts: what a process prepares once, such as a captured graph, is no part of what is measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter


class _Stopwatch:
    """Counts the seconds that do not count; while somebody is in some of them, time stands still for everybody."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._uncounted_s = 0.0
        self._stopped_s = 0.0
        self._depth = 0

    def read(self) -> tuple[float, float]:
        """Return the seconds that count, and those that did not count before."""
        with self._lock:
            now_s = self._stopped_s if self._depth else perf_counter()
            return now_s - self._uncounted_s, self._uncounted_s

    def stop(self) -> None:
        with self._lock:
            if not self._depth:
                self._stopped_s = perf_counter()
            self._depth += 1

    def go_on(self) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._uncounted_s += perf_counter() - self._stopped_s


_stopwatch = _Stopwatch()


def counted_s() -> float:
    """Return this machine's seconds, less those inside `not_counted`; only differences have a meaning."""
    return _stopwatch.read()[0]


def uncounted_s() -> float:
    """Return the seconds that this process has spent inside `not_counted`, without one that has not ended."""
    return _stopwatch.read()[1]


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
