"""WISP's Algorithm 1 on the promises to whole responses, with a lane for requests that are late."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from specbench_kit.core.errors import require
from specbench_kit.serving.schedulers.base import (
    BatchBuilder,
    BatchLimits,
    Decision,
    Queue,
    Scheduler,
    response_deadline,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.feasible_queue import FeasibleQueue
from specbench_kit.serving.schedulers.waiting import WaitingRound


@schedulers.register("wisp-promise")
@dataclass(frozen=True)
class WispPromise(Scheduler):
    """Serves critical requests by deadline, then the others by utility, as `wisp-paper`, but by response deadlines.

    A request's deadline is when its whole response falls behind its promise, so that requests ahead of theirs yield.
    A request is critical `guard_s` seconds before its latest start. Requests that would be late by more than `grace_s`
    seconds even if they started at once form the late lane, the least late first. The lane is served before the
    others if these, over the next `foreseen` batches, could wait for `reserve` times as long as that takes, or
    `most_reserve_s` seconds if that is less; otherwise after them as far as it breaks no promise in the batch, and
    when nothing else can be served. A batch may always last `amortise` times as long as an empty one: shorter ones
    save one request and cost all others throughput.

    The defaults were fitted to closed loops of 50 to 270 devices with prompts of 500 tokens in WISP's four classes:
    there it breaks no more promises than `fcfs` if that breaks less than a fifth or more than half of them, and in
    between sometimes more of one class.
    """

    guard_s: float = 3.0
    amortise: float = 6.0
    reserve: float = 3.0
    most_reserve_s: float = 0.5
    grace_s: float = 0.05
    foreseen: int = 8
    source = "after WISP, Li et al. 2025"

    def __post_init__(self) -> None:
        for name in ("guard_s", "amortise", "reserve", "most_reserve_s", "grace_s", "foreseen"):
            value = getattr(self, name)
            require(value >= 0, f"wisp-promise: {name} must not be negative, but is {value}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _PromiseQueue(self, estimator, limits)


class _PromiseQueue(Queue):
    def __init__(self, options: WispPromise, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._options, self._free_s = options, options.amortise * estimator.idle_s
        self._feasible = FeasibleQueue(estimator.idle_s)
        self._late: list[WaitingRound] = []
        """By deadline: the last one is the least late."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, request: WaitingRound) -> None:
        self.add_all([request])

    def add_all(self, requests: Sequence[WaitingRound]) -> None:
        self._waiting += len(requests)
        self._feasible.add(requests)

    def changed(self, request: WaitingRound) -> None:
        self._feasible.changed(request)

    def next_batch(self, now_s: float) -> Decision:
        for request in self._feasible.remove_late(now_s - self._options.grace_s):
            insort(self._late, request, key=response_deadline)
        batch = self.new_batch(response_deadline, self._free_s)
        if self._late:
            self._add_late(batch, now_s, self._spare_s(now_s))
        if self._feasible.add_urgent(batch, now_s, self._options.guard_s):
            self._feasible.add_by_utility(batch, now_s)
        self._add_late(batch, now_s, inf)
        self._waiting -= len(batch.requests)
        decision = batch.decision()
        self._feasible.compact(self._waiting)
        return decision

    def _spare_s(self, now_s: float) -> float:
        """Return how many seconds of late requests fit before the next feasible ones, less the reserve."""
        options, batch_size = self._options, self.limits.requests
        end_s, spare_s = now_s + self.estimator.idle_s, inf
        for request in islice(self._feasible, options.foreseen * batch_size):
            end_s += self._added_s(request)
            spare_s = min(spare_s, request.response_deadline_s - end_s)
        return spare_s - min(
            options.reserve * sum(map(self._added_s, self._late[-batch_size:])), options.most_reserve_s
        )

    def _add_late(self, batch: BatchBuilder, now_s: float, spare_s: float) -> None:
        """Add late requests, the least late first, that take no more than `spare_s` and break no deadline in it."""
        while self._late:
            request = self._late[-1]
            spare_s -= self._added_s(request)
            if spare_s < 0 or not (batch.fits(request) and batch.leaves_time(request, now_s)):
                return
            batch.add(self._late.pop(), binding=False)

    def _added_s(self, request: WaitingRound) -> float:
        """Return what a request adds to a batch that holds others."""
        return request.isolated_s - self.estimator.idle_s
