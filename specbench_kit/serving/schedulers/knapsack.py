"""The best batch of an epoch, by trying all of them: a bound for small queues."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    DEADLINES,
    BatchBuilder,
    BatchLimits,
    DeadlineKind,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound

Worth = tuple[int, float, float]


@schedulers.register("knapsack")
@dataclass(frozen=True)
class Knapsack(Scheduler):
    """Of the batches in which everything is in time, the one with the most critical requests.

    In time is a round `by` its own deadline or by the promise of its whole response. A request is critical as in
    `wisp-promise`. Among those, the one with the most expected tokens, then the shortest. Late requests fill the room
    that is left. Of a queue longer than `window` only the most urgent that can still be in time are weighed.
    """

    guard_s: float = 0.5
    window: int = 12
    by: DeadlineKind = "promise"
    source = "exact optimum"

    def __post_init__(self) -> None:
        require(self.guard_s >= 0, f"knapsack: guard_s must not be negative, but is {self.guard_s}")
        require(1 <= self.window <= 16, f"knapsack: window must lie in 1..16, not {self.window}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _KnapsackQueue(self, estimator, limits)


class _KnapsackQueue(Queue):
    def __init__(self, options: Knapsack, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._options, self._due = options, DEADLINES[options.by]
        self._waiting: list[WaitingRound] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRound) -> None:
        self._waiting.append(request)

    def next_batch(self, now_s: float) -> Decision:
        due = self._due
        hopeful = [one for one in self._waiting if now_s + one.alone_s <= due(one)]
        hopeful.sort(key=due)
        batches = self._feasible(self.growing(due), hopeful[: self._options.window], now_s)
        growing = max(batches, key=lambda batch: self._worth(batch, now_s))
        for request in self._waiting:
            late = now_s + request.alone_s > due(request)
            if late and growing.fits(request) and growing.leaves_time(request, now_s):
                growing.add(request, binding=False)
        decision = growing.decision()
        self._waiting = [one for one in self._waiting if not one.taken]
        return decision

    def _feasible(self, growing: BatchBuilder, others: list[WaitingRound], now_s: float) -> Iterator[BatchBuilder]:
        """Every batch that meets all deadlines: with any of its requests left out it meets them too."""
        yield growing
        for place, request in enumerate(others):
            larger = growing.copy()
            if larger.take(request, now_s):
                yield from self._feasible(larger, others[place + 1 :], now_s)

    def _worth(self, batch: BatchBuilder, now_s: float) -> Worth:
        guard_s = self._options.guard_s
        critical = sum(self._due(one) - one.alone_s - guard_s <= now_s for one in batch.requests)
        return critical, sum(one.expected_tokens for one in batch.requests), -batch.seconds
