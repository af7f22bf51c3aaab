"""WISP's Algorithm 1: critical requests by deadline, then the others by what they bring per second."""

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from specbench_kit.methods.base import require
from specbench_kit.serving.estimator import Estimator
from specbench_kit.serving.schedulers.base import Decision, Growing, Limits, Queue, Scheduler, Waiting, schedulers

Entry = tuple[float, int, Waiting]


@schedulers.register("wisp")
@dataclass(frozen=True)
class WispScheduler(Scheduler):
    """A request is critical from its latest start on: its deadline, less its time alone and less `guard_s`.

    Critical requests go first, by deadline; then the others, by expected tokens per second of verification that they
    add. The batch is complete at the first request with which it would miss a deadline. Requests that are late even
    if they start at once are served in the room that is left, in the order of their arrival, and when nothing else
    can be. With `late_lane=false`, as the algorithm is printed, such a request is the most critical of all, fails and
    ends every batch before it begins.
    """

    guard_s: float = 0.5
    late_lane: bool = True
    source = "WISP, Li et al. 2025"

    def __post_init__(self) -> None:
        require(self.guard_s >= 0, f"wisp: guard_s must not be negative, but is {self.guard_s}")

    def queue(self, estimator: Estimator, limits: Limits) -> Queue:
        return _WispQueue(self, estimator, limits)


class _WispQueue(Queue):
    def __init__(self, options: WispScheduler, estimator: Estimator, limits: Limits) -> None:
        super().__init__(estimator, limits)
        self._guard_s, self._late_lane = options.guard_s, options.late_lane
        self._order = count()
        self._waiting = 0
        self._starting: list[Entry] = []
        """By latest start, until that has come."""
        self._useful: list[Entry] = []
        """By utility; requests that went elsewhere stay until they surface."""
        self._critical: list[Entry] = []
        self._late: deque[Waiting] = deque()

    def __len__(self) -> int:
        return self._waiting

    def add(self, request: Waiting) -> None:
        self._waiting += 1
        order = next(self._order)
        start_s = request.deadline_s - request.alone_s - self._guard_s
        if start_s <= request.arrived_s:
            self._press(request, order)
            return
        added_s = max(request.alone_s - self.estimator.idle_s, 1e-12)
        heappush(self._starting, (start_s, order, request))
        heappush(self._useful, (-request.expected_tokens / added_s, order, request))

    def next_batch(self, now_s: float) -> Decision:
        self._promote(now_s)
        growing = self.growing()
        if self._take_critical(growing, now_s):
            self._take_useful(growing, now_s)
        while self._late and growing.fits(self._late[0]) and growing.leaves_time(self._late[0], now_s):
            growing.add(self._late.popleft(), binding=False)
        self._waiting -= len(growing.requests)
        self._tidy()
        return growing.decision()

    def _promote(self, now_s: float) -> None:
        """Requests whose latest start has come are critical."""
        while self._starting and self._starting[0][0] <= now_s:
            _, order, request = heappop(self._starting)
            if not request.taken:
                self._press(request, order)

    def _press(self, request: Waiting, order: int) -> None:
        request.critical = True
        heappush(self._critical, (request.deadline_s, order, request))

    def _take_critical(self, growing: Growing, now_s: float) -> bool:
        """Whether all of them were served, so that others may follow."""
        while self._critical:
            request = self._critical[0][2]
            if self._late_lane and now_s + request.alone_s > request.deadline_s:
                heappop(self._critical)
                self._late.append(request)
            elif growing.fits(request) and growing.in_time(request, now_s):
                growing.add(heappop(self._critical)[2])
            else:
                return False
        return True

    def _take_useful(self, growing: Growing, now_s: float) -> None:
        while self._useful:
            request = self._useful[0][2]
            if not (request.taken or request.critical):
                if not (growing.fits(request) and growing.in_time(request, now_s)):
                    return
                growing.add(request)
            heappop(self._useful)

    def _tidy(self) -> None:
        """Entries of requests that have gone never outnumber the others."""
        for heap in (self._starting, self._useful):
            if len(heap) > 2 * self._waiting + 64:
                heap[:] = [entry for entry in heap if not entry[2].taken]
                heapify(heap)
