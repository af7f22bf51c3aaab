"""First come, first served."""

from collections import deque
from dataclasses import dataclass

from specbench_kit.serving.schedulers.base import (
    BatchLimits,
    Decision,
    Queue,
    Scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("fcfs")
@dataclass(frozen=True)
class Fcfs(Scheduler):
    """Takes requests in the order of their arrival, up to the limits of a batch."""

    source = "baseline"

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _FcfsQueue(estimator, limits)


class _FcfsQueue(Queue):
    def __init__(self, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._line: deque[WaitingRound] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: WaitingRound) -> None:
        self._line.append(request)

    def next_batch(self, now_s: float) -> Decision:
        batch = self.new_batch()
        while self._line and batch.fits(self._line[0]):
            batch.put(self._line.popleft())
        return batch.decision()
