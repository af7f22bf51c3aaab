"""The scheduler contract, and the builder with which schedulers form a batch.

A scheduler is a frozen dataclass of options; its state is in the queue that it opens. A queue sees
requests, the time and an estimator, and no simulator, so that a live server uses the same objects.
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
"""Deadline of a round by its own tokens."""
response_deadline: DeadlineOf = attrgetter("response_deadline_s")
"""Deadline of a round by the schedule of its whole response."""

DeadlineKind = Literal["round", "promise"]
DEADLINES: Mapping[str, DeadlineOf] = {"round": round_deadline, "promise": response_deadline}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch, in requests and in tokens of KV."""

    requests: int = 64
    kv_tokens: float = inf


NO_CHUNKS: Mapping[int, int] = MappingProxyType({})


class Decision(NamedTuple):
    """The batch to verify now; if it is empty, `retry_s` is when to ask again unless a request
    arrives earlier.

    `chunks`: of these clients' requests only so many tokens are computed; they return to the queue for the others.
    """

    batch: list[WaitingRound]
    retry_s: float = inf
    chunks: Mapping[int, int] = NO_CHUNKS


class BatchBuilder:
    """A batch being formed: its requests, its expected seconds, and the deadline that binds it.

    The batch may last `free_s` even if a deadline is missed. With an additive latency model each
    request adds its own seconds; otherwise the sums over all requests are kept and evaluated anew.
    """

    def __init__(
        self,
        estimator: Estimator,
        limits: BatchLimits,
        deadline_of: DeadlineOf = response_deadline,
        free_s: float = 0.0,
    ) -> None:
        self.requests: list[WaitingRound] = []
        self.seconds = estimator.idle_s
        self._sums = NOTHING
        self._error_s = 0.0
        self._deadline_of = deadline_of
        self._free_s = free_s
        self._deadline_s = inf
        self._free_kv_tokens = limits.kv_tokens
        self._max_requests = limits.requests
        self._estimator = estimator
        self._additive = estimator.additive
        self._idle_s = estimator.idle_s

    def fits(self, request: WaitingRound) -> bool:
        """Return True if one more request, and its KV, fits."""
        return (
            len(self.requests) < self._max_requests
            and request.new + request.cached <= self._free_kv_tokens
        )

    def take(self, request: WaitingRound, now_s: float) -> bool:
        """Add a request if it fits and all meet their deadlines with it; return True if it was
        added.
        """
        # The inner loop of every simulation: `fits` is written out, since a call takes as long as
        # the comparison.
        if (
            len(self.requests) >= self._max_requests
            or request.new + request.cached > self._free_kv_tokens
        ):
            return False
        seconds = self._seconds_with(request)
        deadline_s = self._deadline_of(request)
        if deadline_s > self._deadline_s:
            deadline_s = self._deadline_s
        if seconds > self._free_s and now_s + seconds > deadline_s:
            return False
        self._deadline_s = deadline_s
        self._append(request, seconds)
        return True

    @property
    def free_slots(self) -> int:
        """The number of requests that may still be added."""
        return self._max_requests - len(self.requests)

    def take_all(self, requests: Sequence[WaitingRound], now_s: float) -> bool:
        """Add all requests, or none: none as soon as it is not certain that `take` would add each
        of them in turn.
        """
        if len(requests) > self.free_slots:
            return False
        tokens = sum(request.new + request.cached for request in requests)
        seconds = self._seconds_with_all(requests)
        deadline_s = min(map(self._deadline_of, requests), default=inf)
        if tokens > self._free_kv_tokens or now_s + seconds > min(deadline_s, self._deadline_s):
            return False
        self._free_kv_tokens = self._free_kv_tokens - tokens
        self.seconds = seconds
        self._deadline_s = min(deadline_s, self._deadline_s)
        self._count(requests)
        self.requests += requests
        return True

    def leaves_time(self, request: WaitingRound, now_s: float) -> bool:
        """Return True if the requests in the batch still meet their deadlines with this one
        added.
        """
        seconds = self._seconds_with(request)
        return seconds <= self._free_s or now_s + seconds <= self._deadline_s

    def add(self, request: WaitingRound, *, binding: bool = True) -> None:
        """Add a request unconditionally; if it is not `binding`, as it is late anyway, its deadline
        is ignored.
        """
        if binding:
            self._deadline_s = min(self._deadline_s, self._deadline_of(request))
        self._append(request, self._seconds_with(request))

    def put(self, request: WaitingRound) -> None:
        """Add a request without estimating the batch's seconds, for schedulers that go by the order
        alone.
        """
        self.requests.append(request)
        self._free_kv_tokens -= request.new + request.cached

    def copy(self) -> "BatchBuilder":
        """Return a copy that can grow in another way."""
        twin = copy(self)
        twin.requests = list(self.requests)
        return twin

    def decision(self) -> Decision:
        """Return the decision to start this batch, and mark its requests as scheduled."""
        for request in self.requests:
            request.scheduled = True
        return Decision(self.requests)

    def _append(self, request: WaitingRound, seconds: float) -> None:
        self.seconds = seconds
        self.requests.append(request)
        self._free_kv_tokens -= request.new + request.cached
        self._count((request,))

    def _count(self, requests: Sequence[WaitingRound]) -> None:
        """Add requests to the sums, which only latency models that are no sum of requests need."""
        if not self._additive:
            self._sums = self._sums.plus(*((request.new, request.cached) for request in requests))
            self._error_s += sum(request.error_s for request in requests)

    def _seconds_with(self, request: WaitingRound) -> float:
        if self._additive:
            return self.seconds + request.isolated_s - self._idle_s
        sums = self._sums.plus((request.new, request.cached))
        return self._estimator.of_sums(sums) + self._error_s + request.error_s

    def _seconds_with_all(self, requests: Sequence[WaitingRound]) -> float:
        if self._additive:
            return (
                self.seconds
                + sum(request.isolated_s for request in requests)
                - len(requests) * self._idle_s
            )
        sums = self._sums.plus(*((request.new, request.cached) for request in requests))
        error_s = self._error_s + sum(request.error_s for request in requests)
        return self._estimator.of_sums(sums) + error_s


class Queue(ABC):
    """The requests that wait at one server."""

    def __init__(self, estimator: Estimator, limits: BatchLimits) -> None:
        self.estimator = estimator
        self.limits = limits

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of waiting requests."""

    @abstractmethod
    def add(self, request: WaitingRound) -> None:
        """Add a request that has arrived."""

    def add_all(self, requests: Sequence[WaitingRound]) -> None:
        """Add requests that have arrived, in this order."""
        for request in requests:
            self.add(request)

    def changed(self, request: WaitingRound) -> None:
        """Note that a waiting request lost its KV and costs more; by default it keeps its
        position.
        """
        return

    @abstractmethod
    def next_batch(self, now_s: float) -> Decision:
        """Return what the free server starts now."""

    def new_batch(
        self, deadline_of: DeadlineOf = response_deadline, free_s: float = 0.0
    ) -> BatchBuilder:
        """Return the builder of an empty batch."""
        return BatchBuilder(self.estimator, self.limits, deadline_of, free_s)


@dataclass(frozen=True)
class Scheduler(ABC):
    """One scheduling policy; the fields of a subclass are its options on the command line."""

    source: ClassVar[str] = ""
    """Paper or system that it comes from."""
    mixes_prompts: ClassVar[bool] = False
    """Whether a server drafts for requests that go on in a step that holds prompts too."""

    @abstractmethod
    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        """Return an empty queue."""


schedulers: Registry[type[Scheduler]] = Registry(
    "scheduler", "specbench_kit.serving.schedulers", group="specbench_kit.schedulers"
)


def parse_scheduler(spec: str) -> Scheduler:
    """Return the scheduler that `name:key=value,...` names."""
    return parse_spec(spec, schedulers)
