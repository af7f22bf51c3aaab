"""A link that is slower than the real one: messages of this machine are held back until they would have arrived."""

from collections import deque
from collections.abc import Callable
from math import inf
from random import Random
from threading import Condition, Thread
from typing import Any

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments.base import Link

Deliver = Callable[[Any], None]


class LinkDirection(Thread):
    """One direction of a link: what is put in comes out, in its order, when it has crossed.

    A message leaves when those before it have left. `deliver` is called in this thread.
    """

    def __init__(self, link: Link, bytes_per_s: float, name: str, deliver: Deliver) -> None:
        super().__init__(name=name, daemon=True)
        self._link, self._bytes_per_s, self._deliver = link, bytes_per_s, deliver
        self._random = Random(f"{link.seed}/{name}")
        self._free_s = self._last_s = 0.0
        self._crossing: deque[tuple[float, Any]] = deque()
        self._changed = Condition()
        self.start()

    def put(self, message: Any, size: int) -> None:
        """Send a message of so many bytes."""
        now_s = monotonic_s()
        latency_s = self._link.message_s(0, inf, self._random)
        self._free_s = max(now_s, self._free_s) + size / self._bytes_per_s
        self._last_s = max(self._last_s, self._free_s + latency_s)
        with self._changed:
            self._crossing.append((self._last_s, message))
            self._changed.notify()

    def run(self) -> None:
        """The thread's work."""
        while True:
            with self._changed:
                while not self._crossing:
                    self._changed.wait()
                due_s, message = self._crossing.popleft()
                while (left_s := due_s - monotonic_s()) > 0:
                    self._changed.wait(left_s)
            self._deliver(message)
