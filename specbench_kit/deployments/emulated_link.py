"""Emulates a slow network link: messages are delayed on this machine until they would have
arrived.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from random import Random
from threading import Condition, Thread
from typing import Generic, TypeVar

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.runs.deployment import Link

M = TypeVar("M")


class LinkDirection(Thread, Generic[M]):
    """One direction of a link, which delivers messages in order; `deliver` is called in this
    thread.
    """

    def __init__(
        self, link: Link, bytes_per_s: float | None, name: str, deliver: Callable[[M], None]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._link = link
        self._bytes_per_s = bytes_per_s or inf
        self._deliver = deliver
        self._random = Random(f"{link.seed}/{name}")
        self._free_s = self._last_arrival_s = 0.0
        self._in_transit: deque[tuple[float, M]] = deque()
        self._changed = Condition()
        self.start()

    def put(self, message: M, size: int) -> None:
        """Send a message of `size` bytes."""
        now_s = monotonic_s()
        latency_s = self._link.message_s(0, None, self._random)
        # The bandwidth is shared: a message leaves after those before it. The latency is not, and
        # jitter could let a message overtake, which an ordered stream does not allow.
        self._free_s = max(now_s, self._free_s) + size / self._bytes_per_s
        self._last_arrival_s = max(self._last_arrival_s, self._free_s + latency_s)
        with self._changed:
            self._in_transit.append((self._last_arrival_s, message))
            self._changed.notify()

    def run(self) -> None:
        """Deliver each message at its time of arrival, for ever."""
        while True:
            with self._changed:
                while not self._in_transit:
                    self._changed.wait()
                arrival_s, message = self._in_transit.popleft()
                while (wait_s := arrival_s - monotonic_s()) > 0:
                    self._changed.wait(wait_s)
            self._deliver(message)
