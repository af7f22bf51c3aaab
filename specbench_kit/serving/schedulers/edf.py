"""Earliest deadline first."""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from specbench_kit.serving.schedulers.base import (
    DUE,
    By,
    Decision,
    Due,
    Limits,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import Waiting


@schedulers.register("edf")
@dataclass(frozen=True)
class Edf(Scheduler):
    """Take what waits, in the order of its deadlines, up to the limits.

    `by` the deadlines of rounds, or the promises of whole responses.
    """

    by: By = "round"
    source = "baseline"

    def queue(self, estimator: Estimator, limits: Limits) -> Queue:
        return _EdfQueue(DUE[self.by], estimator, limits)


class _EdfQueue(Queue):
    def __init__(self, due: Due, estimator: Estimator, limits: Limits) -> None:
        super().__init__(estimator, limits)
        self._due = due
        self._heap: list[tuple[float, int, Waiting]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Waiting) -> None:
        heappush(self._heap, (self._due(request), next(self._order), request))

    def next_batch(self, now_s: float) -> Decision:
        growing = self.growing()
        while self._heap and growing.fits(self._heap[0][2]):
            growing.add(heappop(self._heap)[2])
        return growing.decision()
