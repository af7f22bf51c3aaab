"""The verification thread: rounds wait in the scheduler's queue, and a batch is what the scheduler
takes from it.

A session needs one of the target's KV slots. While other accounts use the server, the rounds of an
account beyond its share of the slots stay behind the queue.
"""

import os
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from math import inf
from threading import Condition, Thread, get_native_id

import torch

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.verification import Verdict
from specbench_kit.live.server.admission import Account
from specbench_kit.live.server.drafting import DraftingOffer, ServerDrafters
from specbench_kit.live.server.generation import GenerationState
from specbench_kit.live.server.rounds import (
    PendingRound,
    VerifiedBatch,
    VerifiedRound,
    generated_round,
)
from specbench_kit.live.server.scoring import OutputScorer, ScoringEndedError, ScoringTask
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.server.verifiers import BatchVerifier, fault_of, states_to_send
from specbench_kit.models.runner import Runner
from specbench_kit.serving.schedulers.base import BatchLimits, Scheduler
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


class BatchRunner(Thread):
    """Verifies batches until it is stopped; times are those of `monotonic_s`.

    Other threads call `submit`, `forget` and `stop`; they and `waiting` are the only shared state,
    under one lock.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        estimator: Estimator,
        max_batch: int,
        drafting: DraftingOffer | None = None,
        scorer: OutputScorer | None = None,
    ) -> None:
        super().__init__(name="verification", daemon=True)
        slots = runner.executor.slots
        self._estimator = estimator
        self.limits = BatchLimits(min(max_batch, slots))
        self._queue = scheduler.queue(estimator, self.limits)
        self._verifier = BatchVerifier(runner)
        self._drafters = ServerDrafters(drafting or DraftingOffer(), runner.capacity)
        self.slots = KvSlots(self._verifier, slots, self._lost_kv)
        self._backlog = Backlog(slots)
        self._pending: dict[WaitingRound, PendingRound] = {}
        self._waiting_of: dict[ServerSession, WaitingRound] = {}
        self._arrived: deque[PendingRound] = deque()
        self._closed: deque[ServerSession] = deque()
        self.scorer = scorer or OutputScorer(runner)
        self._changed = Condition()
        self._stopping = False
        self._retry_s = inf
        """When the scheduler is asked again, whatever arrives until then."""
        self.deliver: Callable[[list[VerifiedRound]], None] = lambda _: None
        """Called in this thread with the rounds of every batch."""
        self._verified = self.waiting = 0
        """Batches so far, and rounds in the queue."""

    @property
    def evictions(self) -> int:
        """The number of sessions that lost their KV to another one."""
        return self.slots.evictions

    def submit(self, pending: PendingRound) -> None:
        """Queue a round that has arrived."""
        with self._changed:
            self._arrived.append(pending)
            self.waiting += 1
            self._changed.notify()

    def forget(self, session: ServerSession) -> None:
        """Free what a closed session holds."""
        with self._changed:
            self._closed.append(session)
            self._changed.notify()

    def score(self, task: ScoringTask) -> None:
        """Queue an output to be scored while no round waits."""
        with self._changed:
            self.scorer.add(task)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the current batch."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Verify what has arrived until `stop`, and score outputs in between."""
        lower_priority()
        with torch.inference_mode():
            while self._wait(min(self._retry_s, self.scorer.release_idle())):
                self._verify_next()
                if self.scorer.waiting:
                    self.scorer.score_next(self._verify_arrived)

    def _verify_next(self) -> None:
        """Admit arrivals, let the scheduler decide, and verify its batch."""
        self._admit_arrivals()
        decision = self._queue.next_batch(monotonic_s())
        self._retry_s = decision.retry_s
        if decision.batch:
            expected_s = self._estimator.batch_s(decision.batch)
            batch = [self._pending.pop(waiting) for waiting in decision.batch]
            for pending in batch:
                del self._waiting_of[pending.session]
            self._backlog.leave(batch)
            with self._changed:
                self.waiting -= len(batch)
            self._verify(batch, expected_s)
            # Rounds that this batch left behind may form the next one at once.
            self._retry_s = 0.0 if self._pending or self._backlog else inf

    def _verify_arrived(self) -> None:
        """Verify all rounds whose time has come: called before each forward of a scoring, for which
        none shall wait.
        """
        while not self._stopping and (
            self._arrived or self._closed or self._retry_s <= monotonic_s()
        ):
            self._verify_next()
        if self._stopping:
            raise ScoringEndedError

    def _wait(self, until_s: float) -> bool:
        """Wait for an arrival, an ended session, an output or `until_s`; return False once the
        thread is to stop.
        """
        with self._changed:
            while not (self._stopping or self._arrived or self._closed or self.scorer.waiting):
                if (wait_s := until_s - monotonic_s()) <= 0:
                    break
                self._changed.wait(None if wait_s == inf else wait_s)
            return not self._stopping

    def _admit_arrivals(self) -> None:
        """Free closed sessions and hand the arrived rounds to the scheduler."""
        with self._changed:
            arrived = self._arrived
            self._arrived = deque()
            closed = self._closed
            self._closed = deque()
        for session in closed:
            self.slots.release(session)
        for pending in arrived:
            self._backlog.add(pending)
        requests = []
        for pending in self._backlog.take(self.slots.accounts()):
            session = pending.session
            waiting = WaitingRound(
                client=session.number,
                new=len(session.text.tokens) - session.cached + len(pending.nodes),
                cached=session.cached,
                arrived_s=pending.arrived_s,
                deadline_s=pending.arrived_s + pending.round_s,
                expected_tokens=1.0 if pending.degraded else session.expected_tokens,
                response_deadline_s=pending.arrived_s + pending.remaining_s,
            )
            self._pending[waiting], self._waiting_of[session] = pending, waiting
            requests.append(waiting)
        self._estimator.estimate(*requests)
        self._queue.add_all(requests)

    def _verify(self, batch: Sequence[PendingRound], expected_s: float) -> None:
        """Verify a batch, commit its verdicts and deliver them; rounds of closed sessions are
        dropped.
        """
        started_s = monotonic_s()
        rounds = [pending for pending in batch if not pending.session.closed]
        needed = {pending.session for pending in rounds}
        cached = [self.slots.bring(pending.session, needed) for pending in rounds]
        faults = self._drafters.draft(rounds)
        drafted_s = monotonic_s()
        sound = [pending for pending in rounds if pending not in faults]
        with self._drafters.verifying(sound):
            verdicts, failed = self._verifier.verify(sound)
        faults |= failed
        bases = [len(pending.session.text.tokens) for pending in rounds]
        committed = [self._commit(pending, verdicts, faults) for pending in rounds]
        ended_s = monotonic_s()
        self._verified += 1
        left = len(self._pending) + len(self._backlog)
        verified = VerifiedBatch(self._verified, len(rounds), ended_s - drafted_s, expected_s, left)
        results = [(verdicts.get(pending), faults.get(pending, "")) for pending in rounds]
        self.deliver(
            [
                VerifiedRound(
                    pending,
                    verdict,
                    error,
                    max(0.0, started_s - pending.arrived_s),
                    in_kv,
                    verified,
                    base,
                    [*tokens, *forced],
                    goes_on=verdict is not None and self._go_on(pending, ended_s),
                    states=states,
                    forced=len(forced),
                )
                for pending, (verdict, error), in_kv, base, (tokens, forced, states) in zip(
                    rounds, results, cached, bases, committed, strict=True
                )
            ]
        )

    def _commit(
        self,
        pending: PendingRound,
        verdicts: dict[PendingRound, Verdict],
        faults: dict[PendingRound, str],
    ) -> tuple[list[int], list[int], bytes]:
        """Commit a round's verdict and return its tokens, those that are forced behind them and the
        states to send, or move the round to the faults.
        """
        session = pending.session
        tokens, forced = list[int](), list[int]()
        states = b""
        try:
            if pending in verdicts:
                states = states_to_send(pending, verdicts[pending], len(session.text.tokens))
                tokens, forced = self._commit_verdict(pending, verdicts[pending])
        except Exception as error:
            del verdicts[pending]
            faults[pending] = fault_of(error)
        if pending in faults:
            self.slots.release(session)
        return tokens, forced, states

    def _commit_verdict(
        self, pending: PendingRound, verdict: Verdict
    ) -> tuple[list[int], list[int]]:
        """Commit a verdict to text and KV, and return the tokens and those that the session's
        grammar forces behind them; a generation or a grammar may end before the last of them.
        """
        session = pending.session
        generation = pending.generation
        tokens = verdict.tokens if generation is None else generation.cut(verdict.tokens)
        forced = session.text.skipped_after(tokens)
        if generation is not None:
            forced = [] if generation.finished else generation.cut(forced)
        root = self._drafters.next_root(session, verdict.before(forced))
        tokens = tokens[: session.text.commit(tokens)]
        if generation is not None and session.text.finish_reason is not None:
            generation.finished = True  # the grammar has ended, whatever ends the device named
        self._verifier.commit(session, verdict)
        self._drafters.commit(session, verdict, root)
        # The bonus token is not in KV: the next round computes it.
        session.cached = len(session.text.tokens) - 1
        session.rounds += 1
        session.committed += len(tokens)
        if len(tokens) < len(verdict.tokens):
            self.slots.release(session)  # its KV holds tokens beyond the end
        if forced:  # in no KV either: the next round computes them behind the bonus token
            session.text.commit(forced)
        return tokens, forced

    def _go_on(self, pending: PendingRound, now_s: float) -> bool:
        """Queue the next round of a generation, here and not in the event loop, which would cost
        each token time.
        """
        session = pending.session
        generation = pending.generation
        if generation is not None:
            generation.verified += 1
        if generation is None or session.closed or not generation.goes_on:
            if generation is not None and (
                generation.finished or generation.state is GenerationState.ENDS
            ):
                self._drafters.release(session)
            return False
        self.submit(generated_round(session, generation, now_s))
        return True

    def _lost_kv(self, session: ServerSession) -> None:
        """Free what a session without a slot holds in its drafter, and let the scheduler know of
        its new costs.
        """
        self._drafters.release(session)
        if (waiting := self._waiting_of.get(session)) is not None:
            # Its waiting round must now compute the whole text.
            waiting.new = waiting.new + waiting.cached
            waiting.cached = 0
            self._estimator.estimate(waiting)
            self._queue.changed(waiting)


class Backlog:
    """Keeps the rounds of each account beyond its share of the slots back while other accounts use
    the server.

    So a device with a thousand sessions delays those of others by one batch, not by a thousand
    rounds. The rounds of an account stay in order. Belongs to the verification thread.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._backlogs: dict[Account, deque[PendingRound]] = {}
        self._scheduled: Counter[Account] = Counter()
        """Rounds that the scheduler sees."""

    def __len__(self) -> int:
        return sum(map(len, self._backlogs.values()))

    def add(self, pending: PendingRound) -> None:
        """Take in a round that has arrived."""
        self._backlogs.setdefault(pending.session.account, deque()).append(pending)

    def leave(self, rounds: Iterable[PendingRound]) -> None:
        """Note that the scheduler handed these rounds out."""
        self._scheduled.subtract(pending.session.account for pending in rounds)
        self._scheduled = +self._scheduled

    def take(self, holders: Iterable[Account]) -> list[PendingRound]:
        """Return the rounds that the scheduler may see now; `holders` are the accounts with
        sessions in KV.
        """
        users = {*holders, *self._backlogs, *self._scheduled}
        share = max(1, self._slots // max(1, len(users)))
        taken: list[PendingRound] = []
        for account, backlog in list(self._backlogs.items()):
            while backlog and (len(users) == 1 or self._scheduled[account] < share):
                taken.append(backlog.popleft())
                self._scheduled[account] += 1
            if not backlog:
                del self._backlogs[account]
        return sorted(taken, key=lambda pending: pending.arrived_s)


class KvSlots:
    """The sessions whose KV the target holds, the least recently used one first; belongs to the
    verification thread.
    """

    def __init__(
        self, verifier: BatchVerifier, count: int, on_release: Callable[[ServerSession], None]
    ) -> None:
        self._verifier = verifier
        self.count = count
        self._on_release = on_release
        self._holders: OrderedDict[ServerSession, None] = OrderedDict()
        self.evictions = 0
        """How often a session lost its slot to another one."""

    def __len__(self) -> int:
        return len(self._holders)

    def accounts(self) -> set[Account]:
        """Return the accounts that hold a slot."""
        return {holder.account for holder in self._holders}

    def bring(self, session: ServerSession, needed: Container[ServerSession]) -> int:
        """Give a session a slot and return its tokens in KV; another one that is not `needed` may
        lose its own.
        """
        if session in self._holders:
            self._holders.move_to_end(session)
            return session.cached
        if len(self._holders) >= self.count:
            victim = self._victim(session, needed)
            self.release(victim)
            victim.account.evictions += 1
            self.evictions += 1
        self._verifier.admit(session)
        self._holders[session] = None
        session.cached = 0
        return 0

    def release(self, session: ServerSession) -> None:
        """Free a session's slot if it has one."""
        if session not in self._holders:
            return
        del self._holders[session]
        self._verifier.release(session)
        session.cached = 0
        self._on_release(session)

    def _victim(self, session: ServerSession, needed: Container[ServerSession]) -> ServerSession:
        """Return the least recently used session of an account that holds more than its share of
        the slots.

        Whoever opens many sessions takes slots from itself, not from others.
        """
        held = Counter(holder.account for holder in self._holders)
        held[session.account] += 1
        share = self.count / len(held)
        free = [holder for holder in self._holders if holder not in needed]
        return next((holder for holder in free if held[holder.account] > share), free[0])


NICE = 5
"""Added to the nice value of the verification thread, so that a message on a shared core need not
wait for it.
"""


def lower_priority() -> None:
    """Lower the priority of the calling thread, where threads have one of their own."""
    if sys.platform == "linux":
        thread = get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
