"""The best batch by trying all of them: an upper bound on what a scheduler can do, for small
queues.
"""

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


@schedulers.register("knapsack")
@dataclass(frozen=True)
class Knapsack(Scheduler):
    """Takes the batch with the most critical requests of those in which every request meets its
    deadline.

    Deadlines are those of rounds or of whole responses, chosen with `by`. A request is critical as in `wisp-promise`,
    `guard_s` seconds before its latest start. Among those batches it takes the one with the most expected tokens, then
    the shortest. Late requests fill the remaining room. Of a queue longer than `window` only the most urgent requests
    that can still meet their deadline are tried.
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
        self._options = options
        self._deadline_of = DEADLINES[options.by]
        self._waiting: list[WaitingRound] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: WaitingRound) -> None:
        self._waiting.append(request)

    def next_batch(self, now_s: float) -> Decision:
        deadline_of = self._deadline_of
        guard_s = self._options.guard_s

        def worth(batch: BatchBuilder) -> tuple[int, float, float]:
            critical = sum(
                deadline_of(request) - request.isolated_s - guard_s <= now_s
                for request in batch.requests
            )
            return (
                critical,
                sum(request.expected_tokens for request in batch.requests),
                -batch.seconds,
            )

        feasible = [
            request
            for request in self._waiting
            if now_s + request.isolated_s <= deadline_of(request)
        ]
        feasible.sort(key=deadline_of)
        batches = self._feasible_batches(
            self.new_batch(deadline_of), feasible[: self._options.window], now_s
        )
        batch = max(batches, key=worth)
        for request in self._waiting:
            late = now_s + request.isolated_s > deadline_of(request)
            if late and batch.fits(request) and batch.leaves_time(request, now_s):
                batch.add(request, binding=False)
        decision = batch.decision()
        self._waiting = [request for request in self._waiting if not request.scheduled]
        return decision

    def _feasible_batches(
        self, batch: BatchBuilder, candidates: list[WaitingRound], now_s: float
    ) -> Iterator[BatchBuilder]:
        """Yield every batch that meets all deadlines."""
        # A subset of a feasible batch is feasible too, so a branch ends at the first request that
        # does not go in.
        yield batch
        for index, request in enumerate(candidates):
            larger = batch.copy()
            if larger.take(request, now_s):
                yield from self._feasible_batches(larger, candidates[index + 1 :], now_s)
