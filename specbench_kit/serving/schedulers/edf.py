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
    """Take what waits, in the order of its deadlines, up to the limits.

    `by` the deadlines of rounds, or the promises of whole responses.
    """

    by: DeadlineKind = "round"
    source = "baseline"

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _EdfQueue(DEADLINES[self.by], estimator, limits)


class _EdfQueue(Queue):
    def __init__(self, due: DeadlineOf, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._due = due
        self._heap: list[tuple[float, int, WaitingRound]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: WaitingRound) -> None:
        heappush(self._heap, (self._due(request), next(self._order), request))

    def next_batch(self, now_s: float) -> Decision:
        growing = self.growing()
        while self._heap and growing.fits(self._heap[0][2]):
            growing.add(heappop(self._heap)[2])
        return growing.decision()
