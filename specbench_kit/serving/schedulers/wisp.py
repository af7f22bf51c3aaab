"""WISP's Algorithm 1: critical requests by deadline, then the others by what they bring per second."""

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice
from math import inf
from operator import attrgetter

from specbench_kit.methods.base import require
from specbench_kit.serving.estimator import Estimator
from specbench_kit.serving.schedulers.base import Decision, Growing, Limits, Queue, Scheduler, Waiting, schedulers

RESERVE = 3.0
"""Times that requests in time must be able to wait for the late ones before these may go first.

With less, the late requests of an overloaded server push the others to the edge of their deadlines.
"""
MOST_RESERVE_S = 0.5
"""However many are late, requests with more time in hand than this wait for some of them."""
GRACE_S = 0.05
"""A request that is no later than this stays among those in time, for rounds to come may make up for it."""
FORESEEN = 8
"""Batches ahead over which requests in time are asked whether they can wait."""
_promised_s = attrgetter("promised_s")


@schedulers.register("wisp")
@dataclass(frozen=True)
class WispScheduler(Scheduler):
    """A request is critical from its latest start on: its deadline, less its time alone and less `guard_s`.

    Critical requests go first, by deadline; then the others, by expected tokens per second of verification that they
    add. The batch is complete at the first request with which it would miss a deadline. The deadline is the time at
    which the response falls behind its promise, so that requests that are ahead of it yield.

    Requests that are late even if they start at once, by more than 50 ms, form the late lane, the least late first. It
    is served in the room that is left: before the others where these could wait for it three times over or half a
    second, else after them as far as that breaks no deadline in the batch, and when nothing else can be served. A
    batch may always take `amortise` times as long as an empty one: shorter ones save one request and cost all others
    throughput. These figures are fitted to simulations: there it breaks no more promises than `fcfs` wherever that
    breaks less than a fifth or more than half of them, and of one class in between sometimes more.

    With `late_lane=false` there is none of this: as the algorithm is printed, a late request is the most critical of
    all, fails and ends every batch before it begins.
    """

    guard_s: float = 3.0
    late_lane: bool = True
    amortise: float = 6.0
    source = "WISP, Li et al. 2025"

    def __post_init__(self) -> None:
        require(self.guard_s >= 0, f"wisp: guard_s must not be negative, but is {self.guard_s}")
        require(self.amortise >= 0, f"wisp: amortise must not be negative, but is {self.amortise}")

    def queue(self, estimator: Estimator, limits: Limits) -> Queue:
        return _WispQueue(self, estimator, limits)


class _WispQueue(Queue):
    def __init__(self, options: WispScheduler, estimator: Estimator, limits: Limits) -> None:
        super().__init__(estimator, limits)
        self._guard_s, self._late_lane = options.guard_s, options.late_lane
        self._free_s = options.amortise * estimator.idle_s if options.late_lane else 0.0
        self._order = count()
        self._waiting = 0
        self._longest_s = 0.0
        """What any of its requests took alone."""
        self._timely: list[Waiting] = []
        """By promise; those that have been taken stay for a while."""
        self._useful: list[tuple[float, int, Waiting]] = []
        """The same requests as a heap by utility; those that went elsewhere stay until they surface."""
        self._late: list[Waiting] = []
        """By promise too: the last is the least late."""

    def __len__(self) -> int:
        return self._waiting

    def add(self, request: Waiting) -> None:
        self._waiting += 1
        insort(self._timely, request, key=_promised_s)
        heappush(
            self._useful, (-request.expected_tokens / max(self._added_s(request), 1e-12), next(self._order), request)
        )
        if request.alone_s > self._longest_s:
            self._longest_s = request.alone_s

    def changed(self, request: Waiting) -> None:
        self._longest_s = max(self._longest_s, request.alone_s)

    def next_batch(self, now_s: float) -> Decision:
        if self._late_lane:
            self._sort_out(now_s)
        growing = Growing(self.estimator, self.limits, self._free_s)
        if self._late:
            self._take_late(growing, now_s, self._room_s(now_s))
        if self._take_critical(growing, now_s):
            self._take_useful(growing, now_s)
        self._take_late(growing, now_s, inf)
        self._waiting -= len(growing.requests)
        decision = growing.decision()
        self._tidy()
        return decision

    def _sort_out(self, now_s: float) -> None:
        """Send to the late lane whoever is late by now."""
        end = bisect_left(self._timely, now_s + self._longest_s, key=_promised_s)
        first = [one for one in self._timely[:end] if not one.taken]
        lost_s = now_s - GRACE_S
        late = [one for one in first if lost_s + one.alone_s > one.promised_s]
        self._timely[:end] = [one for one in first if lost_s + one.alone_s <= one.promised_s]
        if late:
            self._late = sorted(self._late + late, key=_promised_s)

    def _room_s(self, now_s: float) -> float:
        """Seconds by which the next requests in time can be put off for late ones, less the reserve."""
        end_s, room_s = now_s + self.estimator.idle_s, inf
        timely = (one for one in self._timely if not one.taken)
        for request in islice(timely, FORESEEN * self.limits.requests):
            end_s += self._added_s(request)
            room_s = min(room_s, request.promised_s - end_s)
        return room_s - min(RESERVE * sum(map(self._added_s, self._late[-self.limits.requests :])), MOST_RESERVE_S)

    def _take_late(self, growing: Growing, now_s: float, room_s: float) -> None:
        while self._late:
            request = self._late[-1]
            room_s -= self._added_s(request)
            if room_s < 0 or not (growing.fits(request) and growing.leaves_time(request, now_s)):
                return
            growing.add(self._late.pop(), binding=False)

    def _take_critical(self, growing: Growing, now_s: float) -> bool:
        """Whether all of them were served, so that others may follow."""
        pressing_s = now_s + self._guard_s
        all_served, seen = True, 0
        for request in self._timely:
            if request.promised_s > pressing_s + self._longest_s:
                break
            if not request.taken and request.promised_s - request.alone_s <= pressing_s:
                if not self._take(growing, request, now_s):
                    all_served = False
                    break
                request.taken = True
            seen += 1
        self._timely[:seen] = [one for one in self._timely[:seen] if not one.taken]
        return all_served

    def _take(self, growing: Growing, request: Waiting, now_s: float) -> bool:
        """Whether it was taken in; one that is late by now holds nobody to its promise."""
        if not self._late_lane or now_s + request.alone_s <= request.promised_s:
            return growing.take(request, now_s)
        if not (growing.fits(request) and growing.leaves_time(request, now_s)):
            return False
        growing.add(request, binding=False)
        return True

    def _take_useful(self, growing: Growing, now_s: float) -> None:
        while self._useful:
            request = self._useful[0][2]
            if not (request.taken or now_s + request.alone_s > request.promised_s):
                if not growing.take(request, now_s):
                    return
                request.taken = True
            heappop(self._useful)

    def _tidy(self) -> None:
        """Requests that have gone never outnumber the others."""
        most = 2 * self._waiting + 64
        if len(self._timely) > most:
            self._timely = [one for one in self._timely if not one.taken]
        if len(self._useful) > most:
            self._useful = [entry for entry in self._useful if not entry[2].taken]
            heapify(self._useful)

    def _added_s(self, request: Waiting) -> float:
        """What it adds to a batch that holds others."""
        return request.alone_s - self.estimator.idle_s
