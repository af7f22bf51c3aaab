"""Requests that can still keep their promise, in the two orders in which they are served."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from operator import attrgetter

from specbench_kit.serving.schedulers.base import Growing, by_promise
from specbench_kit.serving.schedulers.waiting import Waiting

SORTED_IN = 100
"""So many requests that wait are sorted anew in the time in which one is put into its place among them."""
_alone_s = attrgetter("alone_s")


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

    def add(self, requests: Sequence[Waiting]) -> None:
        """Requests have arrived."""
        idle_s = self._idle_s
        used = [-one.expected_tokens / max(one.alone_s - idle_s, 1e-12) for one in requests]
        entries = list(zip(used, self._order, requests, strict=False))
        self._longest_s = max(self._longest_s, max(map(_alone_s, requests), default=0.0))
        if SORTED_IN * len(requests) < len(self._by_promise):
            for request in requests:
                insort(self._by_promise, request, key=by_promise)
        else:
            self._by_promise += requests
            self._by_promise.sort(key=by_promise)
        for entry in entries:
            heappush(self._by_use, entry)

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
        end = bisect_right(self._by_promise, pressing_s + self._longest_s, key=by_promise)
        first = [one for one in self._by_promise[:end] if not one.taken]
        critical = [one for one in first if one.promised_s - one.alone_s <= pressing_s]
        served = critical
        if not growing.take_all(critical, now_s):
            served = list(takewhile(lambda one: _takes(growing, one, now_s), critical))
        for request in served:
            request.taken = True
        self._by_promise[:end] = [one for one in first if not one.taken]
        return len(served) == len(critical)

    def give_useful(self, growing: Growing, now_s: float) -> None:
        """The most useful go into the batch, up to the first that does not fit."""
        if self._take_all(growing, now_s):
            self._by_use.clear()
        while self._by_use:
            request = self._by_use[0][2]
            if not (request.taken or now_s + request.alone_s > request.promised_s):
                if not growing.take(request, now_s):
                    return
                request.taken = True
            heappop(self._by_use)

    def _take_all(self, growing: Growing, now_s: float) -> bool:
        """Whether all of them go into the batch together, without a look at their order."""
        if len(self._by_use) > 2 * growing.places:
            return False
        useful = [one for _, _, one in self._by_use if not (one.taken or now_s + one.alone_s > one.promised_s)]
        if not growing.take_all(useful, now_s):
            return False
        for request in useful:
            request.taken = True
        return True

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
