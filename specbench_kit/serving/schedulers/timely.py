"""Requests that can still keep their promise, in the two orders in which they are served."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from specbench_kit.serving.schedulers.base import Growing, by_promise
from specbench_kit.serving.schedulers.waiting import Waiting


class Timely:
    """By promise, and as a heap by expected tokens per second that they add; `idle_s` is an empty batch's time.

    A request that was taken in one order stays in the other until it is met there, or `tidy` is called.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._order = count()
        self._longest_s = 0.0
        """What any of its requests took alone: nobody due later than that can be late."""
        self._by_promise: list[Waiting] = []
        self._by_use: list[tuple[float, int, Waiting]] = []

    def __iter__(self) -> Iterator[Waiting]:
        """By promise."""
        return (one for one in self._by_promise if not one.taken)

    def add(self, request: Waiting) -> None:
        """A request has arrived."""
        insort(self._by_promise, request, key=by_promise)
        use = request.expected_tokens / max(request.alone_s - self._idle_s, 1e-12)
        heappush(self._by_use, (-use, next(self._order), request))
        self.changed(request)

    def changed(self, request: Waiting) -> None:
        """A request takes longer than before."""
        if request.alone_s > self._longest_s:
            self._longest_s = request.alone_s

    def overdue(self, now_s: float) -> list[Waiting]:
        """Those that break their promise even if they start now; they leave."""
        end = bisect_left(self._by_promise, now_s + self._longest_s, key=by_promise)
        first = [one for one in self._by_promise[:end] if not one.taken]
        late = [one for one in first if now_s + one.alone_s > one.promised_s]
        self._by_promise[:end] = [one for one in first if now_s + one.alone_s <= one.promised_s]
        return late

    def give_critical(self, growing: Growing, now_s: float, guard_s: float) -> bool:
        """Those whose latest start is `guard_s` ahead go into the batch; whether all of them fitted."""
        pressing_s = now_s + guard_s
        all_served, seen = True, 0
        for request in self._by_promise:
            if request.promised_s > pressing_s + self._longest_s:
                break
            if not request.taken and request.promised_s - request.alone_s <= pressing_s:
                if not _takes(growing, request, now_s):
                    all_served = False
                    break
                request.taken = True
            seen += 1
        self._by_promise[:seen] = [one for one in self._by_promise[:seen] if not one.taken]
        return all_served

    def give_useful(self, growing: Growing, now_s: float) -> None:
        """The most useful go into the batch, up to the first that does not fit."""
        while self._by_use:
            request = self._by_use[0][2]
            if not (request.taken or now_s + request.alone_s > request.promised_s):
                if not growing.take(request, now_s):
                    return
                request.taken = True
            heappop(self._by_use)

    def tidy(self, waiting: int) -> None:
        """Requests that have gone never outnumber those that wait."""
        most = 2 * waiting + 64
        if len(self._by_promise) > most:
            self._by_promise = [one for one in self._by_promise if not one.taken]
        if len(self._by_use) > most:
            self._by_use = [entry for entry in self._by_use if not entry[2].taken]
            heapify(self._by_use)


def _takes(growing: Growing, request: Waiting, now_s: float) -> bool:
    """Whether the batch took it in; one that is late by now holds nobody to its promise."""
    if now_s + request.alone_s <= request.promised_s:
        return growing.take(request, now_s)
    if not (growing.fits(request) and growing.leaves_time(request, now_s)):
        return False
    growing.add(request, binding=False)
    return True
