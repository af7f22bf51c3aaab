"""Requests that can still keep their promise, in the two orders in which they are served."""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from specbench_kit.serving.schedulers.base import BatchBuilder, response_deadline
from specbench_kit.serving.schedulers.waiting import WaitingRound

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_LOOK = 16
"""Of the most useful requests so many are looked at together, then twice as many."""
Entry = tuple[float, int, WaitingRound]


class FeasibleQueue:
    """By promise, and as a heap by expected tokens per second that they add; `idle_s` is an empty batch's time.

    A request that was taken in one order stays in the other until it is met there, or `tidy` is called.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._order = count()
        self._longest_s = 0.0
        """What any of its requests took alone: nobody due later than that can be late."""
        self._new: list[WaitingRound] = []
        self._by_promise, self._promised_s = _objects([]), _promised_s([])
        self._by_use: list[Entry] = []

    def __iter__(self) -> Iterator[WaitingRound]:
        """By promise."""
        self._sort_in()
        return (one for one in self._by_promise if not one.taken)

    def add(self, requests: Sequence[WaitingRound]) -> None:
        """Requests have arrived."""
        self._new += requests
        idle_s, heap = self._idle_s, self._by_use
        for order, request in zip(self._order, requests, strict=False):
            heappush(heap, (-request.expected_tokens / (request.alone_s - idle_s or 1e-12), order, request))
        self._longest_s = max(self._longest_s, max(map(_alone_s, requests), default=0.0))

    def changed(self, request: WaitingRound) -> None:
        """A request takes longer than before."""
        self._longest_s = max(self._longest_s, request.alone_s)

    def overdue(self, now_s: float) -> list[WaitingRound]:
        """Those that break their promise even if they start now; they leave."""
        end = self._promised_by(now_s + self._longest_s)
        waiting = [one for one in self._by_promise[:end].tolist() if not one.taken]
        late = [one for one in waiting if now_s + one.alone_s > one.promised_s]
        self._replace(end, [one for one in waiting if now_s + one.alone_s <= one.promised_s])
        return late

    def give_critical(self, growing: BatchBuilder, now_s: float, guard_s: float) -> bool:
        """Those whose latest start is `guard_s` ahead go into the batch; whether all of them fitted."""
        pressing_s, all_served = now_s + guard_s, True
        end, seen = self._promised_by(pressing_s + self._longest_s), 0
        left: list[WaitingRound] = []
        while all_served and seen < end:
            part = self._by_promise[seen : min(end, seen + max(growing.places, FIRST_LOOK))].tolist()
            critical = [one for one in part if not one.taken and one.promised_s - one.alone_s <= pressing_s]
            served = _give(growing, critical, now_s, _takes)
            all_served = served == len(critical)
            left += [one for one in part if not one.taken]
            seen += len(part)
        self._replace(seen, left)
        return all_served

    def give_useful(self, growing: BatchBuilder, now_s: float) -> None:
        """The most useful go into the batch, up to the first that does not fit."""
        looked_at = FIRST_LOOK
        while best := self._pop(min(looked_at, growing.places), now_s):
            served = _give(growing, [request for _, _, request in best], now_s, BatchBuilder.take)
            for entry in best[served:]:
                heappush(self._by_use, entry)
            if served < len(best):
                return
            looked_at *= 2

    def tidy(self, waiting: int) -> None:
        """Requests that have gone never outnumber those that wait."""
        most = 2 * waiting + 64
        if len(self._by_promise) > most:
            self._replace(len(self._by_promise), [one for one in self._by_promise.tolist() if not one.taken])
        if len(self._by_use) > most:
            self._by_use = [entry for entry in self._by_use if not entry[2].taken]
            heapify(self._by_use)

    def _pop(self, most: int, now_s: float) -> list[Entry]:
        """The most useful of those that are in time and not taken."""
        found: list[Entry] = []
        heap = self._by_use
        while heap and len(found) < most:
            entry = heappop(heap)
            request = entry[2]
            if not request.taken and now_s + request.alone_s <= request.promised_s:
                found.append(entry)
        return found

    def _promised_by(self, until_s: float) -> int:
        """How many are promised up to a moment."""
        self._sort_in()
        return int(self._promised_s.searchsorted(until_s, side="right"))

    def _replace(self, first: int, left: Sequence[WaitingRound]) -> None:
        """Of so many that come first, only these are left."""
        if len(left) < first:
            self._by_promise = _joined(_objects(left), self._by_promise[first:])
            self._promised_s = _joined(_promised_s(left), self._promised_s[first:])

    def _sort_in(self) -> None:
        """Arrays, since there may be thousands of others: finding and making a place for each takes far longer."""
        if self._new:
            promised_s = _joined(self._promised_s, _promised_s(self._new))
            order = promised_s.argsort(kind="stable")
            self._by_promise = _joined(self._by_promise, _objects(self._new))[order]
            self._promised_s = promised_s[order]
            self._new = []


_alone_s = attrgetter("alone_s")


# Whoever lists schedulers imports this file, and numpy only with the first queue.
def _objects(requests: Sequence[WaitingRound]) -> "NDArray[Any]":
    import numpy as np

    return np.fromiter(requests, dtype=object, count=len(requests))


def _promised_s(requests: Sequence[WaitingRound]) -> "NDArray[Any]":
    import numpy as np

    return np.fromiter(map(response_deadline, requests), dtype=np.float64, count=len(requests))


def _joined(first: "NDArray[Any]", second: "NDArray[Any]") -> "NDArray[Any]":
    import numpy as np

    return np.concatenate([first, second])


def _give(
    growing: BatchBuilder,
    requests: Sequence[WaitingRound],
    now_s: float,
    takes: Callable[[BatchBuilder, WaitingRound, float], bool],
) -> int:
    """Into the batch, up to the first that it does not take; how many."""
    served = requests
    if not growing.take_all(requests, now_s):
        served = list(takewhile(lambda one: takes(growing, one, now_s), requests))
    for request in served:
        request.taken = True
    return len(served)


def _takes(growing: BatchBuilder, request: WaitingRound, now_s: float) -> bool:
    """Whether the batch took it in; one that is late by now holds nobody to its promise."""
    if now_s + request.alone_s <= request.promised_s:
        return growing.take(request, now_s)
    if not (growing.fits(request) and growing.leaves_time(request, now_s)):
        return False
    growing.add(request, binding=False)
    return True
