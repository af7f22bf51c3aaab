"""The scheduler contract: options in a frozen dataclass, state in the queue that it opens.

A queue sees requests, the clock's time and an estimator, so that a live server can use the same objects.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

from specbench_kit.registry import Registry
from specbench_kit.serving.estimator import Estimator
from specbench_kit.specs import parse_spec


@dataclass(slots=True, eq=False)
class Waiting:
    """A round that waits for its verification.

    `new` tokens are to be computed after `cached` ones that the server holds in KV; `expected_tokens` is what the
    round is expected to commit. `deadline_s` is the round's own; `promised_s` adds what the response is ahead of its
    promise, or takes off what it is behind: an answer that is later leaves it behind. The server notes in `alone_s`
    how long it is expected to take by itself; a queue marks with `taken` what it has handed out.
    """

    client: int
    new: int
    cached: int
    arrived_s: float
    deadline_s: float
    expected_tokens: float
    promised_s: float
    alone_s: float = 0.0
    taken: bool = False

    @property
    def kv_tokens(self) -> int:
        """Tokens in KV while it is verified."""
        return self.new + self.cached


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch, in requests and in tokens of KV."""

    requests: int = 64
    kv_tokens: float = inf


class Decision(NamedTuple):
    """What to verify now; where that is nothing, `again_s` is when to ask again unless something arrives before."""

    batch: list[Waiting]
    again_s: float = inf


class Growing:
    """A batch that is put together: its expected seconds, its KV, and the earliest promise in it.

    Up to `free_s` it may grow whatever was promised.
    """

    def __init__(self, estimator: Estimator, limits: Limits, free_s: float = 0.0) -> None:
        self.requests: list[Waiting] = []
        self.seconds = estimator.idle_s
        self._free_s = free_s
        self._promised_s = inf
        self._room = limits.kv_tokens
        self._most = limits.requests
        self._estimator = estimator

    def fits(self, request: Waiting) -> bool:
        """Whether there is room for one more, and memory."""
        return len(self.requests) < self._most and request.new + request.cached <= self._room

    def take(self, request: Waiting, now_s: float) -> bool:
        """Take it in if it fits and every promise is kept with it; whether it was."""
        if len(self.requests) >= self._most or request.new + request.cached > self._room:
            return False
        seconds, promised_s = self._with(request), min(self._promised_s, request.promised_s)
        if seconds > self._free_s and now_s + seconds > promised_s:
            return False
        self._promised_s = promised_s
        self._hold(request, seconds)
        return True

    def leaves_time(self, request: Waiting, now_s: float) -> bool:
        """Whether the promises in the batch are still kept with it."""
        seconds = self._with(request)
        return seconds <= self._free_s or now_s + seconds <= self._promised_s

    def add(self, request: Waiting, *, binding: bool = True) -> None:
        """Take it in; the promise of one that is late anyway is not `binding`."""
        if binding and request.promised_s < self._promised_s:
            self._promised_s = request.promised_s
        self._hold(request, self._with(request))

    def copy(self) -> "Growing":
        """The same batch, to grow in another way."""
        twin = copy(self)
        twin.requests = list(self.requests)
        return twin

    def decision(self) -> Decision:
        """To start this batch."""
        for request in self.requests:
            request.taken = True
        return Decision(self.requests)

    def _hold(self, request: Waiting, seconds: float) -> None:
        self.seconds = seconds
        self.requests.append(request)
        self._room -= request.new + request.cached

    def _with(self, request: Waiting) -> float:
        return self._estimator.with_one_more(self.requests, self.seconds, request)


class Queue(ABC):
    """The requests that wait at one server."""

    def __init__(self, estimator: Estimator, limits: Limits) -> None:
        self.estimator, self.limits = estimator, limits

    @abstractmethod
    def __len__(self) -> int:
        """Requests that wait."""

    @abstractmethod
    def add(self, request: Waiting) -> None:
        """A request has arrived."""

    def changed(self, request: Waiting) -> None:
        """A waiting request lost its KV and costs more; unless this is overridden, its place in line stays."""
        return

    @abstractmethod
    def next_batch(self, now_s: float) -> Decision:
        """What the free server starts now."""

    def growing(self) -> Growing:
        """An empty batch."""
        return Growing(self.estimator, self.limits)


@dataclass(frozen=True)
class Scheduler(ABC):
    """One way to choose; the fields of a subclass are its options on the command line."""

    source: ClassVar[str] = ""
    """Paper or system it comes from."""

    @abstractmethod
    def queue(self, estimator: Estimator, limits: Limits) -> Queue:
        """A fresh queue."""


schedulers: Registry[type[Scheduler]] = Registry(
    "scheduler", "specbench_kit.serving.schedulers", group="specbench_kit.schedulers"
)


def parse_scheduler(spec: str) -> Scheduler:
    """The scheduler that `name:key=value` names."""
    return parse_spec(spec, schedulers)
