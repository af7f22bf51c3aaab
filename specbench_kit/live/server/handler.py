"""The frames of devices: sessions are opened, rounds queued, generations begun, and faulty frames
refused.
"""

from collections.abc import Sequence
from math import inf

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import (
    BACKOFF_MS,
    DEFAULT_DEADLINE_S,
    LONGEST_NAME,
    Admission,
)
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.draft_frames import (
    IN_FLIGHT_RETRY_MS,
    Behind,
    New,
    Refused,
    Resent,
    classify,
)
from specbench_kit.live.server.drafts import read_draft, require_ends, require_times
from specbench_kit.live.server.free_running import FreeRunning
from specbench_kit.live.server.generation import (
    DEFAULT_ROUND_S,
    Generation,
    GenerationEvent,
    GenerationState,
)
from specbench_kit.live.server.metrics import EventLog, ServerMetrics
from specbench_kit.live.server.rounds import PendingRound, VerifiedRound, generated_round
from specbench_kit.live.server.scoring import read_task
from specbench_kit.live.server.sessions import (
    AnswerStream,
    CallingStream,
    ServerSession,
    SessionTable,
)
from specbench_kit.live.wire import Down, Refusal, Status

KEPT_ANSWER_BYTES = 1 << 20
"""Size up to which the latest answer of a session is kept, to be sent again after a lost
connection.
"""


class FrameHandler:
    """Answers the frames of all streams. Everything but the verification itself runs in one thread,
    the event loop.

    The method for a kind of frame puts its answers on the stream, at once or when they are there,
    and raises Refusal for a frame that it refuses.
    """

    def __init__(
        self,
        sessions: SessionTable,
        batch_runner: BatchRunner,
        welcome: messages.Welcome,
        tokens: Sequence[str],
    ) -> None:
        self.sessions = sessions
        self.grammars = sessions.grammars
        self.batch_runner = batch_runner
        self.welcome = welcome
        self.limits = sessions.limits
        self.metrics = ServerMetrics()
        self.log = EventLog()
        self.admission = Admission(self.limits, welcome, self.metrics.streams, tokens)
        self.generations = Generations(sessions, batch_runner, welcome.drafting)
        self.free_running = FreeRunning(
            batch_runner, self.admission, self.metrics, sessions.vocabulary
        )

    def leave(self, stream: CallingStream, reason: str) -> None:
        """Note that a device is gone; its sessions stay, so that it can resume them over another
        stream.
        """
        self.admission.count_stream(stream.caller.account, -1)
        self.batch_runner.scorer.forget(stream)
        self.log.write("left", peer=stream.peer, account=stream.caller.account.name, reason=reason)
        for session in stream.sessions.values():
            if session.stream is stream:
                session.stream = None
                if not session.decodes_unasked:
                    self.generations.cancel(session)

    def open(self, frame: messages.Open, stream: CallingStream) -> None:
        """Open or resume a session, and answer how far the server's text and KV of it reach."""
        if (
            frame.session not in stream.sessions
            and len(stream.sessions) >= self.limits.stream_sessions
        ):
            most = self.limits.stream_sessions
            raise Refusal(
                Status.TOO_MANY_SESSIONS, f"a stream has up to {most}: close some", retry_ms=1000
            )
        session, dropped = self.sessions.open(frame, stream.caller, monotonic_s())
        if dropped is not None:
            self._ended(
                dropped,
                "replaced" if dropped.name == session.name else "dropped for another session",
            )
        if session.stream is None and session.round is None:
            self.log.write("opened", session=session.name, account=session.account.name)
        stream.attach(session)
        # While a round is in flight the text belongs to the verification thread.
        committed = 0 if session.in_flight else len(session.text.tokens)
        stream.answer(
            Down(
                opened=messages.Opened(
                    session=session.name, committed=committed, cached=session.cached
                )
            )
        )
        if session.ahead:
            self.free_running.begin(session, len(frame.prompt) + len(frame.output))

    def draft(self, frame: messages.Draft, stream: CallingStream) -> None:
        """Do with a draft what its case asks for (see `draft_frames`)."""
        session = self.sessions.find(frame.session, stream.caller.owner, monotonic_s())
        stream.attach(session)
        if session.ahead:
            self.free_running.take(session, frame)
            return
        match classify(session, frame):
            case Resent(answer):
                if answer is not None:  # otherwise the verdict that is yet to come answers it
                    stream.answer(answer)
            case Refused(refusal, ends):
                if ends:
                    self.drop(session, ends)
                elif refusal.status is Status.IN_FLIGHT:
                    self.generations.cancel_unasked(session)
                raise refusal
            case Behind(missed):
                session.round = frame.round
                rebase = messages.Verdict(
                    session=session.name, round=frame.round, status=Status.REBASE, suffix=missed
                )
                session.last_answer = Down(verdict=rebase)
                stream.answer(session.last_answer)
            case New():
                self._verify(session, frame)

    def _verify(self, session: ServerSession, frame: messages.Draft) -> None:
        """Queue a new round; raise Refusal for a malformed draft, or one too many."""
        degraded = self.admission.require_capacity(session.account, self.batch_runner.waiting)
        require_times(frame)
        draft = read_draft(
            frame, session.text, session.sampler, self.limits, self.sessions.vocabulary
        )
        session.round = frame.round
        session.last_answer = None
        session.begin_round()
        round_s, remaining_s = (
            ms / 1e3 or DEFAULT_DEADLINE_S for ms in (frame.round_ms, frame.remaining_ms)
        )
        self.batch_runner.submit(
            PendingRound(
                session,
                frame.round,
                draft,
                monotonic_s(),
                round_s,
                remaining_s,
                degraded,
                states=frame.states,
            )
        )

    def generate(self, frame: messages.Generate, stream: CallingStream) -> None:
        """Begin a generation."""
        session = self.sessions.find(frame.session, stream.caller.owner, monotonic_s())
        stream.attach(session)
        if session.ahead:
            raise Refusal(
                Status.OUT_OF_ORDER, "a session with drafts ahead is decoded without being asked"
            )
        self.admission.require_capacity(session.account, self.batch_runner.waiting)
        self.generations.begin(session, frame, stream)

    def cancel(self, frame: messages.Cancel, stream: CallingStream) -> None:
        """End a generation after its current round."""
        self.generations.cancel(
            self.sessions.find(frame.session, stream.caller.owner, monotonic_s())
        )

    def score(self, frame: messages.Score, stream: CallingStream) -> None:
        """Queue an output to be scored."""
        if self.admission.stopping:
            raise Refusal(Status.GOING_AWAY, "this server stops", retry_ms=BACKOFF_MS)
        constraint = self.grammars.find(frame.grammar)
        task = read_task(frame, stream, self.limits, self.batch_runner.scorer, constraint)
        self.batch_runner.score(task)

    def close(self, frame: messages.Close, stream: CallingStream) -> None:
        """End a session; one that is unknown has ended already."""
        stream.sessions.pop(frame.session, None)
        try:
            session = self.sessions.find(frame.session, stream.caller.owner, monotonic_s())
        except Refusal:
            return
        self.drop(session, "closed")

    def drop(self, session: ServerSession, reason: str) -> None:
        """Forget a session and free what it holds."""
        self._ended(self.sessions.drop(session), reason)

    def relieve_silent(self) -> None:
        """Go on with the responses of devices that sent nothing for longer than they said that they
        would.

        Also with those that rested although their devices send drafts ahead.
        """
        self.free_running.wake()
        if self.admission.stopping or self.batch_runner.waiting >= self.limits.waiting:
            return
        for session in self.sessions.silent(monotonic_s()):
            if self.generations.go_on_alone(session):
                self.metrics.relieved.inc()
                self.log.write("goes on alone", session=session.name, account=session.account.name)

    def drop_idle(self) -> None:
        """Forget the sessions that nobody used for too long."""
        for session in self.sessions.drop_idle(monotonic_s()):
            self._ended(session, "idle")

    def _ended(self, session: ServerSession, reason: str) -> None:
        """Free what a session held that is no longer in the table, and log its end."""
        self.batch_runner.forget(session)
        self.log.write(
            "ended",
            session=session.name,
            account=session.account.name,
            reason=reason,
            rounds=session.rounds,
            committed=session.committed,
        )

    def answer(self, batch: list[VerifiedRound]) -> None:
        """Send the answers of a verified batch to the devices that are connected."""
        for verified in batch:
            session = verified.pending.session
            if session.closed:
                # Its device may have opened another session of that name, with the same numbers.
                continue
            session.used_s = monotonic_s()
            if verified.verdict is None:
                self._failed(verified)
            elif verified.pending.generation is not None:
                self.generations.answer(verified, verified.pending.generation)
            else:
                session.end_round()
                self._verified(verified)

    def _verified(self, verified: VerifiedRound) -> None:
        """Answer a device's draft with its verdict."""
        session = verified.pending.session
        answer = verdict_frame(verified, self.limits.credit)
        if session.ahead:
            self.free_running.answered(session, answer)
            return
        # A device that lost a longer answer opens its session again, see `draft_frames`.
        session.last_answer = answer if len(verified.states) <= KEPT_ANSWER_BYTES else None
        if session.stream is not None:
            session.stream.answer(answer)

    def _failed(self, verified: VerifiedRound) -> None:
        """End the session of a round that failed, and say so if its device waits for the round.

        The device may open it again, with the text that it has.
        """
        session = verified.pending.session
        is_awaited = not session.decodes_unasked
        self.metrics.refused.labels(Status.FAILED.name).inc()
        self.log.write(
            "failed", session=session.name, account=session.account.name, error=verified.error
        )
        failed = messages.Refused(session=session.name, round=verified.pending.number)
        failed.status = Status.FAILED
        failed.reason = verified.error
        self.drop(session, "failed")
        if session.stream is not None and is_awaited:
            session.stream.answer(Down(refused=failed))


class Generations:
    """Begins, streams and ends the generations of all sessions. Everything here runs in the event
    loop.
    """

    def __init__(
        self, sessions: SessionTable, batch_runner: BatchRunner, methods: Sequence[str]
    ) -> None:
        self._sessions = sessions
        self._batch_runner = batch_runner
        self._methods = methods
        self._limits = sessions.limits
        self._held_back: set[ServerSession] = set()
        """Sessions whose generations are paused or parked."""

    def begin(self, session: ServerSession, frame: messages.Generate, stream: AnswerStream) -> None:
        """Queue the first round; answer with the tokens that the session has and its device lacks,
        if there are any.

        A device that lost its connection sends its frame again, with the tokens that it has.
        """
        if session.in_flight:
            self.cancel(session)
            raise Refusal(
                Status.IN_FLIGHT, f"round {session.round} is not answered yet", IN_FLIGHT_RETRY_MS
            )
        text = session.text
        base = frame.base
        if not len(text.request.prompt_ids) <= base <= len(text.tokens):
            raise Refusal(
                Status.WRONG_BASE, f"after {base} tokens; the session has {len(text.tokens)}"
            )
        if not 1 <= frame.max_tokens <= self._limits.context - base:
            held = f"{base} tokens and {frame.max_tokens} more; this server holds {self._limits.context}"
            raise Refusal(Status.CONTEXT_FULL, held)
        if frame.method and frame.method not in self._methods:
            offered = ", ".join(self._methods) or "none"
            raise Refusal(
                Status.UNKNOWN_METHOD,
                f"'{frame.method[:LONGEST_NAME]}'; this server drafts with {offered}",
            )
        require_ends(frame.ends, self._sessions.vocabulary)
        if not 0 <= frame.round_ms < inf:
            raise Refusal(Status.BROKEN_DEADLINE, f"{frame.round_ms} ms; send 0 or more")
        round_s = frame.round_ms / 1e3 or DEFAULT_ROUND_S
        most_ahead = max(1, self._limits.credit // 2)
        generation = Generation(
            frame.round,
            frame.max_tokens,
            frozenset(frame.ends),
            round_s,
            frame.method,
            most_ahead=most_ahead,
        )
        session.round = frame.round
        session.last_answer = None
        missed = generation.cut(text.tokens[base:])
        if not generation.finished:
            session.begin_round(generation)
            self._batch_runner.submit(generated_round(session, generation, monotonic_s()))
        if missed:
            stream.answer(
                _frame(session, generation, base, missed, Status.REBASE, generation.finished)
            )

    def go_on_alone(self, session: ServerSession) -> bool:
        """Begin the rest of a silent device's response; return False if it has ended."""
        text = session.text
        bound = session.silence
        number = session.round
        assert bound is not None
        assert number is not None
        generation = bound.generation(number, text.tokens, len(text.request.prompt_ids))
        if generation is None:
            session.silence = None
            return False
        session.begin_round(generation)
        self._batch_runner.submit(generated_round(session, generation, monotonic_s()))
        return True

    def answer(self, verified: VerifiedRound, generation: Generation) -> None:
        """Stream the tokens of a round, and end or pause its generation."""
        session = verified.pending.session
        stream = session.stream
        generation.answered += 1
        if not verified.goes_on:
            # Of a response that goes on, the verification thread met the pause, or was ahead.
            generation.move(
                GenerationEvent.FINISHED if generation.finished else GenerationEvent.STOPPED
            )
        last = generation.state is GenerationState.OVER
        if last:
            session.end_round()
        if stream is not None and not generation.unasked:
            frame = _frame(session, generation, verified.base, verified.tokens, Status.OK, last)
            _add_times(frame.generated, verified)
            stream.answer(frame)
            if verified.goes_on:
                generation.move(
                    GenerationEvent.FULL
                    if stream.unread >= self._limits.credit // 2
                    else GenerationEvent.READ
                )
        if generation.state in (GenerationState.PAUSES, GenerationState.PARKED):
            self._held_back.add(session)
            self.resume(session.stream)

    def resume(self, stream: AnswerStream | None) -> None:
        """Go on with the stream's paused generations if few of its answers are unread."""
        if not self._held_back or stream is None or stream.unread >= self._limits.credit // 4:
            return
        for session in [session for session in self._held_back if session.stream is stream]:
            self._held_back.discard(session)
            generation = session.generation
            if generation is None or session.closed:
                continue
            was_parked = generation.state is GenerationState.PARKED
            generation.move(GenerationEvent.READ)
            if was_parked:
                self._batch_runner.submit(generated_round(session, generation, monotonic_s()))

    def cancel_unasked(self, session: ServerSession) -> None:
        """End what was decoded for a device that was silent and is back."""
        if session.decodes_unasked:
            self.cancel(session)

    def cancel(self, session: ServerSession) -> None:
        """End a session's generation after the round that is under way."""
        generation = session.generation
        if generation is None:
            return
        generation.move(GenerationEvent.CANCELLED)
        self._held_back.discard(session)
        if generation.state is GenerationState.OVER:
            session.end_round()
            if session.stream is not None and not generation.unasked:
                base = len(session.text.tokens)
                session.stream.answer(_frame(session, generation, base, (), Status.OK, last=True))


def _frame(
    session: ServerSession,
    generation: Generation,
    base: int,
    tokens: Sequence[int],
    status: Status,
    last: bool,
) -> Down:
    generated = messages.Generated(
        session=session.name,
        round=generation.number,
        status=status,
        base=base,
        tokens=tokens,
        last=last,
    )
    return Down(generated=generated)


def _add_times(frame: messages.Generated, verified: VerifiedRound) -> None:
    verdict = verified.verdict
    batch = verified.batch
    assert verdict is not None
    frame.queue_us = round(verified.queue_s * 1e6)
    frame.verify_us = round(batch.verify_s * 1e6)
    frame.batch_size = batch.size
    frame.batch_number = batch.number
    frame.cached = verified.cached
    frame.computed = verdict.computed
    frame.drafted = verdict.draft.tree.drafted
    frame.submitted = len(verdict.submitted)
    frame.accepted = len(verdict.path)
    frame.draft_us = round(verified.pending.draft_s * 1e6)
    frame.padded.extend(verdict.padded)
    frame.forced = verified.forced
    frame.forbidden = verdict.forbidden
    frame.forced_submitted = verdict.forced_submitted
    frame.forced_accepted = verdict.forced_accepted


def verdict_frame(verified: VerifiedRound, credit: int) -> Down:
    """Return the answer to a draft that was verified."""
    verdict = verified.verdict
    pending = verified.pending
    batch = verified.batch
    assert verdict is not None
    return Down(
        verdict=messages.Verdict(
            session=pending.session.name,
            round=pending.number,
            status=Status.DEGRADED if pending.degraded else Status.OK,
            path=verdict.path,
            bonus=verdict.bonus,
            queue_us=round(verified.queue_s * 1e6),
            verify_us=round(batch.verify_s * 1e6),
            expected_us=round(batch.expected_s * 1e6),
            batch_size=batch.size,
            batch_number=batch.number,
            waiting=batch.waiting,
            cached=verified.cached,
            states=verified.states,
            computed=verdict.computed,
            credit=credit,
            padded=verdict.padded,
            base=verified.base,
            forced=verified.forced,
        )
    )
