"""The verification thread: rounds wait in the scheduler's queue, and a batch is what the scheduler takes from it."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from threading import Condition, Thread

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.verification import Verdict
from specbench_kit.live.server.drafting import DraftingOffer, ServerDrafters
from specbench_kit.live.server.priority import lower_priority
from specbench_kit.live.server.rounds import PendingRound, VerifiedBatch, VerifiedRound, generated_round
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.server.verifiers import TargetVerifiers, states_to_send
from specbench_kit.models.runner import Runner
from specbench_kit.serving.schedulers.base import BatchLimits, Scheduler
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


class BatchRunner(Thread):
    """Verifies batches until it is stopped; times are those of `monotonic_s`.

    Other threads call `submit`, `forget` and `stop`; they and `waiting` are the only shared state, under one lock.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        estimator: Estimator,
        max_batch: int,
        drafting: DraftingOffer | None = None,
    ) -> None:
        super().__init__(name="verification", daemon=True)
        self._slots, self._estimator = runner.executor.slots, estimator
        self.limits = BatchLimits(min(max_batch, self._slots))
        self._queue = scheduler.queue(estimator, self.limits)
        self._verifiers = TargetVerifiers(runner)
        self._drafters = ServerDrafters(drafting or DraftingOffer(), runner.capacity)
        self._in_kv: OrderedDict[str, ServerSession] = OrderedDict()
        """Sessions that hold a slot, the least recently used one first."""
        self._pending: dict[WaitingRound, PendingRound] = {}
        self._waiting_of: dict[ServerSession, WaitingRound] = {}
        self._arrived: deque[PendingRound] = deque()
        self._closed: deque[ServerSession] = deque()
        self._changed = Condition()
        self._stopping = False
        self.deliver: Callable[[list[VerifiedRound]], None] = lambda _: None
        """Called in this thread with the rounds of every batch."""
        self.evictions = self._verified = 0
        self.waiting = 0
        """Rounds in the queue."""

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

    def stop(self) -> None:
        """End the thread after the current batch."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Admit arrivals, let the scheduler decide, and verify its batch, until `stop`."""
        lower_priority()
        retry_s = inf
        with torch.inference_mode():
            while self._wait(retry_s):
                self._admit_arrivals()
                decision = self._queue.next_batch(monotonic_s())
                retry_s = decision.retry_s
                if decision.batch:
                    expected_s = self._estimator.batch_s(decision.batch)
                    batch = [self._pending.pop(waiting) for waiting in decision.batch]
                    for pending in batch:
                        del self._waiting_of[pending.session]
                    with self._changed:
                        self.waiting -= len(batch)
                    self._verify(batch, expected_s)
                    # Rounds that this batch left behind may form the next one at once.
                    retry_s = 0.0 if self._pending else inf

    def _wait(self, until_s: float) -> bool:
        """Wait for an arrival, an ended session or `until_s`; return False once the thread is to stop."""
        with self._changed:
            while not (self._stopping or self._arrived or self._closed) and (wait_s := until_s - monotonic_s()) > 0:
                self._changed.wait(None if wait_s == inf else wait_s)
            return not self._stopping

    def _admit_arrivals(self) -> None:
        """Free closed sessions and hand the arrived rounds to the scheduler."""
        with self._changed:
            arrived, self._arrived = self._arrived, deque()
            closed, self._closed = self._closed, deque()
        for session in closed:
            self._evict(session)
        requests = []
        for pending in arrived:
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
        """Verify a batch, commit its verdicts and deliver them; rounds of closed sessions are dropped."""
        started_s = monotonic_s()
        rounds = [pending for pending in batch if not pending.session.closed]
        cached = [self._bring_into_kv(pending.session, rounds) for pending in rounds]
        faults = self._drafters.draft(rounds)
        sound = [pending for pending in rounds if pending not in faults]
        drafted_s = monotonic_s()
        try:
            with self._drafters.verifying(sound):
                verdicts = self._verifiers.forward(sound)
        except SkitError:
            verdicts = self._verify_alone(sound, faults)
        results = [(verdicts.get(pending), faults.get(pending, "")) for pending in rounds]
        bases = [len(pending.session.text.tokens) for pending in rounds]
        committed = [
            [] if verdict is None else self._commit(pending, verdict)
            for pending, (verdict, _) in zip(rounds, results, strict=True)
        ]
        ended_s = monotonic_s()
        self._verified += 1
        verified = VerifiedBatch(self._verified, len(rounds), ended_s - drafted_s, expected_s, len(self._pending))
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
                    tokens,
                    goes_on=verdict is not None and self._go_on(pending, ended_s),
                    states=states_to_send(pending, verdict, base),
                )
                for pending, (verdict, error), in_kv, base, tokens in zip(
                    rounds, results, cached, bases, committed, strict=True
                )
            ]
        )

    def _commit(self, pending: PendingRound, verdict: Verdict) -> list[int]:
        """Commit a verdict to text and KV, and return the tokens; a generation may end before the last of them."""
        session = pending.session
        root = self._drafters.next_root(session, verdict)
        tokens = verdict.tokens if pending.generation is None else pending.generation.cut(verdict.tokens)
        session.text.commit(tokens)
        self._verifiers.of(session).commit(verdict)
        self._drafters.commit(session, verdict, root)
        # The bonus token is not in KV: the next round computes it.
        session.cached = len(session.text.tokens) - 1
        session.rounds += 1
        session.committed += len(tokens)
        if len(tokens) < len(verdict.tokens):
            self._evict(session)  # its KV holds tokens beyond the end
        return tokens

    def _go_on(self, pending: PendingRound, now_s: float) -> bool:
        """Queue the next round of a generation, here and not in the event loop, which would cost each token time."""
        session, generation = pending.session, pending.generation
        if generation is None or session.closed or not generation.goes_on:
            if generation is not None and (generation.finished or generation.cancelled):
                self._drafters.release(session)
            return False
        self.submit(generated_round(session, generation, now_s))
        return True

    def _verify_alone(
        self, rounds: Sequence[PendingRound], faults: dict[PendingRound, str]
    ) -> dict[PendingRound, Verdict]:
        """Verify each round of a batch that failed by itself, and note the error of the one that caused it."""
        verdicts: dict[PendingRound, Verdict] = {}
        for pending in rounds:
            # The failed forward has left provisional tokens in KV: the session starts over in an empty slot.
            self._evict(pending.session)
            try:
                self._bring_into_kv(pending.session, [pending])
                verdicts |= self._verifiers.forward([pending])
            except SkitError as error:
                self._evict(pending.session)
                faults[pending] = str(error)
        return verdicts

    def _bring_into_kv(self, session: ServerSession, batch: Iterable[PendingRound]) -> int:
        """Give a session a slot and return its tokens in KV.

        If no slot is free, the least recently used session that is not in the batch loses its own.
        """
        if self._in_kv.get(session.name) is session:
            self._in_kv.move_to_end(session.name)
            return session.cached
        if len(self._in_kv) >= self._slots:
            needed = {pending.session for pending in batch}
            self._evict(next(holder for holder in self._in_kv.values() if holder not in needed))
            self.evictions += 1
        self._verifiers.of(session).admit(session.text)
        self._in_kv[session.name] = session
        session.cached = 0
        return 0

    def _evict(self, session: ServerSession) -> None:
        """Free a session's slot if it has one."""
        # A session that was opened anew has the name of its closed predecessor, but not its slot.
        if self._in_kv.get(session.name) is not session:
            return
        del self._in_kv[session.name]
        self._verifiers.of(session).release(session.text)
        self._drafters.release(session)
        session.cached = 0
        if (waiting := self._waiting_of.get(session)) is not None:
            # Its waiting round must now compute the whole text, which the scheduler has to know.
            waiting.new, waiting.cached = waiting.new + waiting.cached, 0
            self._estimator.estimate(waiting)
            self._queue.changed(waiting)
