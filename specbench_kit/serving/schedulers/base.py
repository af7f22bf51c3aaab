"""The scheduler contract: options in a frozen dataclass, state in the queue that it opens.

A queue sees requests, the clock's time and an estimator, so that a live server can use the same objects.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

from specbench_kit.core.registry import Registry
from specbench_kit.core.specs import parse_spec
from specbench_kit.decoding.latency import NOTHING
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound

DeadlineOf = Callable[[WaitingRound], float]
round_deadline: DeadlineOf = attrgetter("deadline_s")
"""When a round has to be verified for its own tokens to come in time."""
response_deadline: DeadlineOf = attrgetter("promised_s")
"""When it has to be verified for the whole response to keep its promise."""

DeadlineKind = Literal["round", "promise"]
DEADLINES: Mapping[str, DeadlineOf] = {"round": round_deadline, "promise": response_deadline}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch, in requests and in tokens of KV."""

    requests: int = 64
    kv_tokens: float = inf


NO_PARTS: Mapping[int, int] = MappingProxyType({})


class Decision(NamedTuple):
    """What to verify now; where that is nothing, `again_s` is when to ask again unless something arrives before.

    Of clients in `parts` only so many tokens are computed: their requests come back with the rest.
    """

    batch: list[WaitingRound]
    again_s: float = inf
    parts: Mapping[int, int] = NO_PARTS


class BatchBuilder:
    """A batch that is put together: its expected seconds, its KV, and when the first request in it is due.

    Up to `free_s` it may grow whatever is due.
    """

    def __init__(
        self, estimator: Estimator, limits: BatchLimits, due: DeadlineOf = response_deadline, free_s: float = 0.0
    ) -> None:
        self.requests: list[WaitingRound] = []
        self.seconds = estimator.idle_s
        self._sums, self._error_s = NOTHING, 0.0
        self._due, self._free_s = due, free_s
        self._due_s = inf
        self._room = limits.kv_tokens
        self._most = limits.requests
        self._estimator, self._additive, self._idle_s = estimator, estimator.additive, estimator.idle_s

    def fits(self, request: WaitingRound) -> bool:
        """Whether there is room for one more, and memory."""
        return len(self.requests) < self._most and request.new + request.cached <= self._room

    def take(self, request: WaitingRound, now_s: float) -> bool:
        """Take it in if it fits and all are in time with it; whether it was."""
        if len(self.requests) >= self._most or request.new + request.cached > self._room:
            return False
        seconds, due_s = self._with(request), self._due(request)
        if due_s > self._due_s:
            due_s = self._due_s
        if seconds > self._free_s and now_s + seconds > due_s:
            return False
        self._due_s = due_s
        self._hold(request, seconds)
        return True

    @property
    def places(self) -> int:
        """How many more requests there may be."""
        return self._most - len(self.requests)

    def take_all(self, requests: Sequence[WaitingRound], now_s: float) -> bool:
        """Take all of them in if that is known to be right at one look, as if one by one; else none of them."""
        if not self._additive or len(requests) > self.places:
            return False
        tokens = sum(request.new + request.cached for request in requests)
        seconds = self.seconds + sum(request.alone_s for request in requests) - len(requests) * self._idle_s
        due_s = min(map(self._due, requests), default=inf)
        if tokens > self._room or now_s + seconds > min(due_s, self._due_s):
            return False
        self._room, self.seconds, self._due_s = self._room - tokens, seconds, min(due_s, self._due_s)
        self.requests += requests
        return True

    def leaves_time(self, request: WaitingRound, now_s: float) -> bool:
        """Whether those in the batch are still in time with it."""
        seconds = self._with(request)
        return seconds <= self._free_s or now_s + seconds <= self._due_s

    def add(self, request: WaitingRound, *, binding: bool = True) -> None:
        """Take it in; one that is late anyway is not `binding`."""
        if binding:
            self._due_s = min(self._due_s, self._due(request))
        self._hold(request, self._with(request))

    def copy(self) -> "BatchBuilder":
        """The same batch, to grow in another way."""
        twin = copy(self)
        twin.requests = list(self.requests)
        return twin

    def decision(self) -> Decision:
        """To start this batch."""
        for request in self.requests:
            request.taken = True
        return Decision(self.requests)

    def _hold(self, request: WaitingRound, seconds: float) -> None:
        self.seconds = seconds
        self.requests.append(request)
        self._room -= request.new + request.cached
        if not self._additive:
            self._sums = self._sums.plus((request.new, request.cached))
            self._error_s += request.error_s

    def _with(self, request: WaitingRound) -> float:
        if self._additive:
            return self.seconds + request.alone_s - self._idle_s
        sums = self._sums.plus((request.new, request.cached))
        return self._estimator.of_sums(sums) + self._error_s + request.error_s


class Queue(ABC):
    """The requests that wait at one server."""

    def __init__(self, estimator: Estimator, limits: BatchLimits) -> None:
        self.estimator, self.limits = estimator, limits

    @abstractmethod
    def __len__(self) -> int:
        """Requests that wait."""

    @abstractmethod
    def add(self, request: WaitingRound) -> None:
        """A request has arrived."""

    def add_all(self, requests: Sequence[WaitingRound]) -> None:
        """Requests have arrived, in this order."""
        for request in requests:
            self.add(request)

    def changed(self, request: WaitingRound) -> None:
        """A waiting request lost its KV and costs more; unless this is overridden, its place in line stays."""
        return

    @abstractmethod
    def next_batch(self, now_s: float) -> Decision:
        """What the free server starts now."""

    def growing(self, due: DeadlineOf = response_deadline, free_s: float = 0.0) -> BatchBuilder:
        """An empty batch."""
        return BatchBuilder(self.estimator, self.limits, due, free_s)


@dataclass(frozen=True)
class Scheduler(ABC):
    """One way to choose; the fields of a subclass are its options on the command line."""

    source: ClassVar[str] = ""
    """Paper or system it comes from."""

    @abstractmethod
    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        """A fresh queue."""


schedulers: Registry[type[Scheduler]] = Registry(
    "scheduler", "specbench_kit.serving.schedulers", group="specbench_kit.schedulers"
)


def parse_scheduler(spec: str) -> Scheduler:
    """The scheduler that `name:key=value` names."""
    return parse_spec(spec, schedulers)
