"""Full batches of one size, or the waiting requests after a time-out."""

from collections import deque
from dataclasses import dataclass
from math import inf

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    BatchLimits,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("static")
@dataclass(frozen=True)
class Static(Scheduler):
    """Waits for `size` requests, or until the first of them has waited `timeout_s` seconds.

    Clients are dealt to `groups` groups, and a batch holds requests of one group.
    """

    size: int = 8
    timeout_s: float = 0.1
    groups: int = 1
    source = "SLED"

    def __post_init__(self) -> None:
        require(self.size >= 1, f"static: size must be at least 1, not {self.size}")
        require(
            self.timeout_s >= 0, f"static: timeout_s must not be negative, but is {self.timeout_s}"
        )
        require(self.groups >= 1, f"static: groups must be at least 1, not {self.groups}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _StaticQueue(self, estimator, limits)


class _StaticQueue(Queue):
    def __init__(self, options: Static, estimator: Estimator, limits: BatchLimits) -> None:
        size = min(options.size, limits.requests)
        super().__init__(estimator, BatchLimits(size, limits.kv_tokens))
        self._size = size
        self._timeout_s = options.timeout_s
        self._lines: list[deque[WaitingRound]] = [deque() for _ in range(options.groups)]

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def add(self, request: WaitingRound) -> None:
        self._lines[request.client % len(self._lines)].append(request)

    def next_batch(self, now_s: float) -> Decision:
        line = min(self._lines, key=self._ready_s)
        ready_s = self._ready_s(line)
        if ready_s > now_s:
            return Decision([], ready_s)
        batch = self.new_batch()
        while line and batch.fits(line[0]):
            batch.add(line.popleft())
        return batch.decision()

    def _ready_s(self, line: deque[WaitingRound]) -> float:
        """Return when a group's next batch is full or timed out."""
        if len(line) >= self._size:
            return line[self._size - 1].arrived_s
        return line[0].arrived_s + self._timeout_s if line else inf
