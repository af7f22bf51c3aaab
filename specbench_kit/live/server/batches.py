"""The verifying thread: rounds wait in a scheduler's queue, and a batch is what it takes from there."""

import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from threading import Condition, Thread, get_native_id
from typing import NamedTuple

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import ModelVerifier, Verdict
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.models.runner import Runner
from specbench_kit.serving.schedulers.base import BatchLimits, Scheduler
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound

POLITE = 5
"""Added to the verifying thread's nice value: on a core that both share, a frame takes less time than it would wait."""


@dataclass(slots=True, eq=False)
class PendingRound:
    """One round; `degraded` ones have no draft any more."""

    held: ServerSession
    number: int
    draft: Draft
    arrived_s: float
    round_s: float
    remaining_s: float
    degraded: bool = False

    @property
    def nodes(self) -> list[int]:
        return [] if self.degraded else list(range(1, len(self.draft.tree)))


class VerifiedBatch(NamedTuple):
    """Its number, requests, seconds as it took and as the scheduler expected it, and how many rounds it left behind."""

    number: int
    size: int
    verify_s: float
    expected_s: float
    left: int


class VerifiedRound(NamedTuple):
    """A round with its verdict, or with what went wrong; seconds from arrival to start."""

    job: PendingRound
    verdict: Verdict | None
    error: str
    queue_s: float
    cached: int
    batch: "VerifiedBatch"


Deliver = Callable[[list[VerifiedRound]], None]


class BatchRunner(Thread):
    """Verifies until it is stopped; the batch in hand is finished. Times are those of `monotonic_s`."""

    def __init__(self, runner: Runner, scheduler: Scheduler, estimator: Estimator, most: int) -> None:
        super().__init__(name="verification", daemon=True)
        self._runner, self._slots, self._estimator = runner, runner.executor.slots, estimator
        self.limits = BatchLimits(min(most, self._slots))
        self._queue = scheduler.queue(estimator, self.limits)
        self._verifiers: dict[Sampler, ModelVerifier] = {}
        self._in_kv: OrderedDict[str, ServerSession] = OrderedDict()
        self._waiting: dict[WaitingRound, PendingRound] = {}
        self._of: dict[ServerSession, WaitingRound] = {}
        self._arrived: deque[PendingRound] = deque()
        self._closed: deque[ServerSession] = deque()
        self._changed = Condition()
        self._stopping = False
        self.deliver: Deliver = lambda _: None
        self.evictions = self._verified = 0
        self.waiting = 0
        """Rounds in line."""

    def submit(self, job: PendingRound) -> None:
        """A round has arrived."""
        with self._changed:
            self._arrived.append(job)
            self.waiting += 1
            self._changed.notify()

    def forget(self, held: ServerSession) -> None:
        """A session has ended."""
        with self._changed:
            self._closed.append(held)
            self._changed.notify()

    def stop(self) -> None:
        """End after the batch in hand."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """The thread's work."""
        _give_way()
        retry_s = inf
        with torch.inference_mode():
            while self._wait(retry_s):
                self._take_in()
                decision = self._queue.next_batch(monotonic_s())
                retry_s = decision.retry_s
                if decision.batch:
                    expected_s = self._estimator.batch_s(decision.batch)
                    self._verify([self._pop(waiting) for waiting in decision.batch], expected_s)
                    retry_s = 0.0 if self._waiting else inf

    def _wait(self, until_s: float) -> bool:
        """Until there is something new to decide about; whether to go on."""
        with self._changed:
            while not (self._stopping or self._arrived or self._closed) and (left_s := until_s - monotonic_s()) > 0:
                self._changed.wait(None if left_s == inf else left_s)
            return not self._stopping

    def _take_in(self) -> None:
        with self._changed:
            arrived, self._arrived = self._arrived, deque()
            closed, self._closed = self._closed, deque()
        for held in closed:
            self._evict(held.name, held)
        requests = [self._enter(job) for job in arrived]
        self._estimator.estimate(*requests)
        self._queue.add_all(requests)

    def _enter(self, job: PendingRound) -> WaitingRound:
        held = job.held
        waiting = WaitingRound(
            client=held.number,
            new=len(held.text.tokens) - held.cached + len(job.nodes),
            cached=held.cached,
            arrived_s=job.arrived_s,
            deadline_s=job.arrived_s + job.round_s,
            expected_tokens=1.0 if job.degraded else held.expected_tokens,
            response_deadline_s=job.arrived_s + job.remaining_s,
        )
        self._waiting[waiting] = job
        self._of[held] = waiting
        return waiting

    def _pop(self, waiting: WaitingRound) -> PendingRound:
        job = self._waiting.pop(waiting)
        del self._of[job.held]
        with self._changed:
            self.waiting -= 1
        return job

    def _verify(self, jobs: Sequence[PendingRound], expected_s: float) -> None:
        started_s = monotonic_s()
        live = [job for job in jobs if not job.held.closed]
        cached = {job: self._bring_in(job.held, live) for job in live}
        try:
            found: list[tuple[Verdict | None, str]] = [(verdict, "") for verdict in self._forward(live)]
        except SkitError:
            found = [self._alone(job) for job in live]
        for job, (verdict, _) in zip(live, found, strict=True):
            self._commit(job, verdict)
        self._verified += 1
        batch = VerifiedBatch(self._verified, len(live), monotonic_s() - started_s, expected_s, len(self._waiting))
        done = [
            VerifiedRound(job, verdict, error, max(0.0, started_s - job.arrived_s), cached[job], batch)
            for job, (verdict, error) in zip(live, found, strict=True)
        ]
        self.deliver(done)

    def _forward(self, jobs: Sequence[PendingRound]) -> list[Verdict]:
        """One forward for every way of sampling that is in the batch."""
        by_sampler: dict[Sampler, list[PendingRound]] = {}
        for job in jobs:
            by_sampler.setdefault(job.held.sampler, []).append(job)
        verdicts: dict[PendingRound, Verdict] = {}
        for sampler, those in by_sampler.items():
            answer = self._verifier(sampler).send([job.draft for job in those], [job.nodes for job in those])
            verdicts.update(zip(those, answer(), strict=True))
        return [verdicts[job] for job in jobs]

    def _alone(self, job: PendingRound) -> tuple[Verdict | None, str]:
        """What a batch failed on is told to the one that it was."""
        self._evict(job.held.name, job.held)
        try:
            self._bring_in(job.held, [job])
            return self._forward([job])[0], ""
        except SkitError as error:
            self._evict(job.held.name, job.held)
            return None, str(error)

    def _commit(self, job: PendingRound, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        held = job.held
        held.text.commit(verdict.tokens)
        self._verifier(held.sampler).commit(verdict)
        held.cached = len(held.text.tokens) - 1
        held.rounds += 1
        held.committed += len(verdict.tokens)

    def _verifier(self, sampler: Sampler) -> ModelVerifier:
        if sampler not in self._verifiers:
            self._verifiers[sampler] = ModelVerifier(self._runner, sampler)
        return self._verifiers[sampler]

    def _bring_in(self, held: ServerSession, batch: Iterable[PendingRound]) -> int:
        """Give a session a slot, that of the one used longest ago if need be; returns its tokens in KV."""
        if held.name in self._in_kv and self._in_kv[held.name] is held:
            self._in_kv.move_to_end(held.name)
            return held.cached
        if len(self._in_kv) >= self._slots:
            needed = {job.held for job in batch}
            name, oldest = next((name, one) for name, one in self._in_kv.items() if one not in needed)
            self._evict(name, oldest)
            self.evictions += 1
        self._verifier(held.sampler).admit(held.text)
        self._in_kv[held.name] = held
        held.cached = 0
        return 0

    def _evict(self, name: str, held: ServerSession) -> None:
        """Take a session's KV; a round of it that waits costs more from now on."""
        if self._in_kv.get(name) is not held:
            return
        del self._in_kv[name]
        self._verifier(held.sampler).release(held.text)
        held.cached = 0
        if (waiting := self._of.get(held)) is not None:
            waiting.new, waiting.cached = waiting.new + waiting.cached, 0
            self._estimator.estimate(waiting)
            self._queue.changed(waiting)


def _give_way() -> None:
    """Let the process's other threads go first."""
    if sys.platform == "linux":  # elsewhere a thread has no nice value of its own
        thread = get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + POLITE)
