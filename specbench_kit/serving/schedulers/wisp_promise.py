"""Algorithm 1's order on the promises of whole responses, with a lane for those that are late."""

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
    """Critical requests by promise, then the others by use, as `wisp-paper`, but due when the response falls behind.

    So requests that are ahead of their promise yield. Those that are late even if they start at once, by more than
    `grace_s` seconds, form the late lane, the least late first. It is served in the room that is left: before the
    others where these, over the next `foreseen` batches, could wait `reserve` times as long as it takes, or
    `most_reserve_s` seconds; else after them as far as that breaks no promise in the batch, and when nothing else can
    be served. A batch may always take `amortise` times as long as an empty one: shorter ones save one request and cost
    all others throughput. A request is critical `guard_s` seconds before its latest start.

    The defaults were fitted to closed loops of 50 to 270 devices with prompts of 500 tokens in WISP's four classes:
    there it breaks no more promises than `fcfs` wherever that breaks less than a fifth or more than half of them, and
    of one class in between sometimes more.
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
        self._timely = FeasibleQueue(estimator.idle_s)
        self._late: list[WaitingRound] = []
        """By promise: the last is the least late."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, request: WaitingRound) -> None:
        self.add_all([request])

    def add_all(self, requests: Sequence[WaitingRound]) -> None:
        self._waiting += len(requests)
        self._timely.add(requests)

    def changed(self, request: WaitingRound) -> None:
        self._timely.changed(request)

    def next_batch(self, now_s: float) -> Decision:
        for request in self._timely.overdue(now_s - self._options.grace_s):
            insort(self._late, request, key=response_deadline)
        growing = self.growing(response_deadline, self._free_s)
        if self._late:
            self._take_late(growing, now_s, self._room_s(now_s))
        if self._timely.give_critical(growing, now_s, self._options.guard_s):
            self._timely.give_useful(growing, now_s)
        self._take_late(growing, now_s, inf)
        self._waiting -= len(growing.requests)
        decision = growing.decision()
        self._timely.tidy(self._waiting)
        return decision

    def _room_s(self, now_s: float) -> float:
        """Seconds by which the next requests in time can be put off for late ones, less the reserve."""
        options, most = self._options, self.limits.requests
        end_s, room_s = now_s + self.estimator.idle_s, inf
        for request in islice(self._timely, options.foreseen * most):
            end_s += self._added_s(request)
            room_s = min(room_s, request.promised_s - end_s)
        return room_s - min(options.reserve * sum(map(self._added_s, self._late[-most:])), options.most_reserve_s)

    def _take_late(self, growing: BatchBuilder, now_s: float, room_s: float) -> None:
        while self._late:
            request = self._late[-1]
            room_s -= self._added_s(request)
            if room_s < 0 or not (growing.fits(request) and growing.leaves_time(request, now_s)):
                return
            growing.add(self._late.pop(), binding=False)

    def _added_s(self, request: WaitingRound) -> float:
        """What it adds to a batch that holds others."""
        return request.alone_s - self.estimator.idle_s
