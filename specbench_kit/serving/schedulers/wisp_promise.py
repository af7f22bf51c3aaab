"""WISP's Algorithm 1 on the promises to whole responses, with a lane for requests that are late.

Requests that can still meet their deadline are kept in two orders: by deadline, and by the expected
tokens per second that they add to a batch.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice, takewhile
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

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
from specbench_kit.serving.schedulers.waiting import WaitingRound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@schedulers.register("wisp-promise")
@dataclass(frozen=True)
class WispPromise(Scheduler):
    """Serves critical requests by deadline, then the others by utility, as `wisp-paper`, but by
    response deadlines.

    A request's deadline is when its whole response falls behind its promise, so that requests ahead of theirs yield.
    A request is critical `guard_s` seconds before its latest start. Requests that would be late by more than `grace_s`
    seconds even if they started at once form the late lane, the least late first. The lane is served before the
    others if these, over the next `foreseen` batches, could wait for `reserve` times as long as that takes, or
    `most_reserve_s` seconds if that is less; otherwise after them as far as it breaks no promise in the batch, and
    when nothing else can be served. A batch may always last `amortise` times as long as an empty one: shorter ones
    save one request and cost all others throughput.

    The defaults were fitted to closed loops of 50 to 270 devices with prompts of 500 tokens in
    WISP's four classes: there it breaks no more promises than `fcfs` if that breaks less than a
    fifth or more than half of them, and in between sometimes more of one class.
    """

    guard_s: float = 3.0
    amortise: float = 6.0
    reserve: float = 3.0
    most_reserve_s: float = 0.5
    grace_s: float = 0.05
    foreseen: int = 8
    source = "after WISP, Li et al. 2026 (arXiv 2601.11652)"

    def __post_init__(self) -> None:
        for name in ("guard_s", "amortise", "reserve", "most_reserve_s", "grace_s", "foreseen"):
            value = getattr(self, name)
            require(value >= 0, f"wisp-promise: {name} must not be negative, but is {value}")

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        return _PromiseQueue(self, estimator, limits)


class _PromiseQueue(Queue):
    def __init__(self, options: WispPromise, estimator: Estimator, limits: BatchLimits) -> None:
        super().__init__(estimator, limits)
        self._options = options
        self._free_s = options.amortise * estimator.idle_s
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
        """Return how many seconds of late requests fit before the next feasible ones, less the
        reserve.
        """
        options = self._options
        batch_size = self.limits.requests
        end_s = now_s + self.estimator.idle_s
        spare_s = inf
        for request in islice(self._feasible, options.foreseen * batch_size):
            end_s += self._added_s(request)
            spare_s = min(spare_s, request.response_deadline_s - end_s)
        return spare_s - min(
            options.reserve * sum(map(self._added_s, self._late[-batch_size:])),
            options.most_reserve_s,
        )

    def _add_late(self, batch: BatchBuilder, now_s: float, spare_s: float) -> None:
        """Add late requests, the least late first, that take no more than `spare_s` and break no
        deadline in it.
        """
        while self._late:
            request = self._late[-1]
            spare_s -= self._added_s(request)
            if spare_s < 0 or not (batch.fits(request) and batch.leaves_time(request, now_s)):
                return
            batch.add(self._late.pop(), binding=False)

    def _added_s(self, request: WaitingRound) -> float:
        """Return what a request adds to a batch that holds others."""
        return request.isolated_s - self.estimator.idle_s


FIRST_LOOK = 16
"""Requests of the highest utility that are tried together at first; their number doubles as long as
all fit.
"""
Entry = tuple[float, int, WaitingRound]
_isolated_s = attrgetter("isolated_s")


class FeasibleQueue:
    """Requests by response deadline, and as a heap by expected tokens per second that they add to a
    batch.

    `idle_s` is the time of an empty batch. A request that is taken in one order stays in the other, marked as
    scheduled, until it is met there or `compact` is called: removing it at once would cost a search each time.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._order = count()
        self._longest_s = 0.0
        """The longest isolated time of any request so far: nobody with a deadline beyond that can
        be late.
        """
        self._new: list[WaitingRound] = []
        self._by_deadline = _object_array([])
        self._deadlines_s = _deadline_array([])
        self._by_utility: list[Entry] = []

    def __iter__(self) -> Iterator[WaitingRound]:
        """Iterate by deadline."""
        self._merge_new()
        return (request for request in self._by_deadline if not request.scheduled)

    def add(self, requests: Sequence[WaitingRound]) -> None:
        """Add requests that have arrived."""
        self._new += requests
        idle_s = self._idle_s
        heap = self._by_utility
        for order, request in zip(self._order, requests, strict=False):
            heappush(
                heap,
                (-request.expected_tokens / (request.isolated_s - idle_s or 1e-12), order, request),
            )
        self._longest_s = max(self._longest_s, max(map(_isolated_s, requests), default=0.0))

    def changed(self, request: WaitingRound) -> None:
        """Note that a request takes longer than before."""
        self._longest_s = max(self._longest_s, request.isolated_s)

    def remove_late(self, now_s: float) -> list[WaitingRound]:
        """Remove and return the requests that miss their deadline even if they start at `now_s`."""
        end = self._count_due(now_s + self._longest_s)
        waiting = [request for request in self._by_deadline[:end].tolist() if not request.scheduled]
        late = [
            request
            for request in waiting
            if now_s + request.isolated_s > request.response_deadline_s
        ]
        timely = [
            request
            for request in waiting
            if now_s + request.isolated_s <= request.response_deadline_s
        ]
        self._replace_first(end, timely)
        return late

    def add_urgent(self, batch: BatchBuilder, now_s: float, guard_s: float) -> bool:
        """Add the requests whose latest start is within `guard_s` to the batch; return True if all
        of them fitted.
        """
        critical_s = now_s + guard_s
        all_added = True
        end = self._count_due(critical_s + self._longest_s)
        checked = 0
        remaining: list[WaitingRound] = []
        while all_added and checked < end:
            part = self._by_deadline[
                checked : min(end, checked + max(batch.free_slots, FIRST_LOOK))
            ].tolist()
            critical = [
                request
                for request in part
                if not request.scheduled
                and request.response_deadline_s - request.isolated_s <= critical_s
            ]
            all_added = _add_first(batch, critical, now_s, _take_or_ignore_deadline) == len(
                critical
            )
            remaining += [request for request in part if not request.scheduled]
            checked += len(part)
        self._replace_first(checked, remaining)
        return all_added

    def add_by_utility(self, batch: BatchBuilder, now_s: float) -> None:
        """Add the requests of the highest utility to the batch, up to the first that does not
        fit.
        """
        heap = self._by_utility
        look = FIRST_LOOK
        while True:
            best: list[Entry] = []
            while heap and len(best) < min(look, batch.free_slots):
                entry = heappop(heap)
                request = entry[2]
                # The others have been taken by deadline, or are late and in the late lane: they
                # leave the heap.
                if (
                    not request.scheduled
                    and now_s + request.isolated_s <= request.response_deadline_s
                ):
                    best.append(entry)
            if not best:
                return
            added = _add_first(batch, [request for _, _, request in best], now_s, BatchBuilder.take)
            for entry in best[added:]:
                heappush(heap, entry)
            if added < len(best):
                return
            look *= 2

    def compact(self, waiting: int) -> None:
        """Drop scheduled requests if they outnumber the `waiting` ones."""
        limit = 2 * waiting + 64
        if len(self._by_deadline) > limit:
            remaining = [request for request in self._by_deadline.tolist() if not request.scheduled]
            self._replace_first(len(self._by_deadline), remaining)
        if len(self._by_utility) > limit:
            self._by_utility = [entry for entry in self._by_utility if not entry[2].scheduled]
            heapify(self._by_utility)

    def _count_due(self, until_s: float) -> int:
        """Return how many requests have a deadline up to `until_s`."""
        self._merge_new()
        return int(self._deadlines_s.searchsorted(until_s, side="right"))

    def _replace_first(self, count: int, remaining: Sequence[WaitingRound]) -> None:
        """Replace the first `count` requests by deadline with the `remaining` ones of them."""
        if len(remaining) < count:
            import numpy as np

            self._by_deadline = np.concatenate(
                [_object_array(remaining), self._by_deadline[count:]]
            )
            self._deadlines_s = np.concatenate(
                [_deadline_array(remaining), self._deadlines_s[count:]]
            )

    def _merge_new(self) -> None:
        """Sort new requests in; with thousands of others, inserting them one by one takes far
        longer.
        """
        if self._new:
            import numpy as np

            deadlines_s = np.concatenate([self._deadlines_s, _deadline_array(self._new)])
            order = deadlines_s.argsort(kind="stable")
            self._by_deadline = np.concatenate([self._by_deadline, _object_array(self._new)])[order]
            self._deadlines_s = deadlines_s[order]
            self._new = []


# numpy is imported with the first queue: whoever only lists schedulers imports this file too.
def _object_array(requests: Sequence[WaitingRound]) -> "NDArray[np.object_]":
    import numpy as np

    return np.fromiter(requests, dtype=object, count=len(requests))


def _deadline_array(requests: Sequence[WaitingRound]) -> "NDArray[np.float64]":
    import numpy as np

    return np.fromiter(map(response_deadline, requests), dtype=np.float64, count=len(requests))


def _add_first(
    batch: BatchBuilder,
    requests: Sequence[WaitingRound],
    now_s: float,
    take: Callable[[BatchBuilder, WaitingRound, float], bool],
) -> int:
    """Add requests to the batch up to the first that `take` refuses; return how many were added."""
    added = requests
    if not batch.take_all(requests, now_s):
        added = list(takewhile(lambda request: take(batch, request, now_s), requests))
    for request in added:
        request.scheduled = True
    return len(added)


def _take_or_ignore_deadline(batch: BatchBuilder, request: WaitingRound, now_s: float) -> bool:
    """Take a request; the deadline of one that is late by now is ignored, as it could only end the
    batch.
    """
    if now_s + request.isolated_s <= request.response_deadline_s:
        return batch.take(request, now_s)
    if not (batch.fits(request) and batch.leaves_time(request, now_s)):
        return False
    batch.add(request, binding=False)
    return True
