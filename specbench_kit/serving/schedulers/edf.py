"""Earliest deadline first."""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from specbench_kit.serving.schedulers.base import (
    DEADLINES,
    BatchLimits,
    DeadlineKind,
    DeadlineOf,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("edf")
@dataclass(frozen=True)
class Edf(Scheduler):
    """Takes requests in the order of their deadlines, up to the limits of a batch.

    `by` chooses the deadlines: those of rounds, or those by the promises to whole responses.
    """

    by: DeadlineKind = "round"
    source = "baseline"

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _EdfQueue(DEADLINES[self.by], estimator, limits)


class _EdfQueue(Queue):
    def __init__(self, deadline_of: DeadlineOf, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._deadline_of = deadline_of
        self._heap: list[tuple[float, int, WaitingRound]] = []
        # Equal deadlines are served in the order of arrival, and requests are never compared with
        # each other.
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: WaitingRound) -> None:
        heappush(self._heap, (self._deadline_of(request), next(self._order), request))

    def next_batch(self, now_s: float) -> Decision:
        batch = self.new_batch()
        while self._heap and batch.fits(self._heap[0][2]):
            batch.add(heappop(self._heap)[2])
        return batch.decision()
