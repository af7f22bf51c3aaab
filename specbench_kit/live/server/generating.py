"""The event loop's side of generations: they begin, their tokens are streamed, and they pause, resume and end."""

from collections.abc import Sequence
from math import inf

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.drafts import LONGEST_NAME, require_ends
from specbench_kit.live.server.generation import Generation
from specbench_kit.live.server.rounds import VerifiedRound, generated_round
from specbench_kit.live.server.sessions import AnswerStream, ServerSession, SessionTable
from specbench_kit.live.wire import Down, Status

DEFAULT_ROUND_S = 60.0
"""The time in which each round of a generation should be answered if its device names none."""
IN_FLIGHT_RETRY_MS = 10


class Generations:
    """Begins, streams and ends the generations of all sessions. Everything here runs in the event loop."""

    def __init__(self, sessions: SessionTable, batch_runner: BatchRunner, methods: Sequence[str]) -> None:
        self._sessions, self._batch_runner, self._methods = sessions, batch_runner, methods
        self._limits = sessions.limits
        self._held_back: set[ServerSession] = set()
        """Sessions whose generations are paused or parked."""

    def begin(self, session: ServerSession, frame: messages.Generate) -> Down | None:
        """Queue the first round; return the tokens that the session has and its device lacks, if there are any.

        A device that lost its connection sends its frame again, with the tokens that it has.
        """
        if session.in_flight:
            self.cancel(session)
            raise Refusal(Status.IN_FLIGHT, f"round {session.round} is not answered yet", IN_FLIGHT_RETRY_MS)
        text, base = session.text, frame.base
        if not len(text.request.prompt_ids) <= base <= len(text.tokens):
            raise Refusal(Status.WRONG_BASE, f"after {base} tokens; the session has {len(text.tokens)}")
        if not 1 <= frame.max_tokens <= self._limits.context - base:
            held = f"{base} tokens and {frame.max_tokens} more; this server holds {self._limits.context}"
            raise Refusal(Status.CONTEXT_FULL, held)
        if frame.method and frame.method not in self._methods:
            offered = ", ".join(self._methods) or "none"
            raise Refusal(Status.UNKNOWN_METHOD, f"'{frame.method[:LONGEST_NAME]}'; this server drafts with {offered}")
        require_ends(frame.ends, self._sessions.vocabulary)
        if not 0 <= frame.round_ms < inf:
            raise Refusal(Status.BROKEN_DEADLINE, f"{frame.round_ms} ms; send 0 or more")
        round_s = frame.round_ms / 1e3 or DEFAULT_ROUND_S
        generation = Generation(frame.round, frame.max_tokens, frozenset(frame.ends), round_s, frame.method)
        session.round, session.last_answer = frame.round, None
        missed = generation.cut(text.tokens[base:])
        if not generation.finished:
            session.begin_round(generation)
            self._batch_runner.submit(generated_round(session, generation, monotonic_s()))
        return _frame(session, generation, base, missed, Status.REBASE, generation.finished) if missed else None

    def go_on_alone(self, session: ServerSession) -> bool:
        """Begin the rest of a silent device's response; return False if it has ended."""
        text, bound, number = session.text, session.silence, session.round
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
        session, stream = verified.pending.session, verified.pending.session.stream
        session.used_s = monotonic_s()
        last = not verified.goes_on and (generation.finished or generation.cancelled)
        if last:
            session.end_round()
        if stream is not None and not generation.unasked:
            frame = _frame(session, generation, verified.base, verified.tokens, Status.OK, last)
            _add_times(frame.generated, verified)
            stream.answer(frame)
            generation.paused = not last and stream.unread >= self._limits.credit // 2
        if not last and not verified.goes_on:
            # The verification thread met the pause: nothing of this generation waits there.
            generation.parked = True
        if generation.paused or generation.parked:
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
            generation.paused = False
            if generation.parked:
                generation.parked = False
                self._batch_runner.submit(generated_round(session, generation, monotonic_s()))

    def cancel_unasked(self, session: ServerSession) -> None:
        """End what was decoded for a device that was silent and is back."""
        if session.generation is not None and session.generation.unasked:
            self.cancel(session)

    def cancel(self, session: ServerSession) -> None:
        """End a session's generation after the round that is under way."""
        generation = session.generation
        if generation is None:
            return
        generation.cancelled = True
        self._held_back.discard(session)
        if generation.parked:
            session.end_round()
            if session.stream is not None and not generation.unasked:
                base = len(session.text.tokens)
                session.stream.answer(_frame(session, generation, base, (), Status.OK, last=True))


def _frame(
    session: ServerSession, generation: Generation, base: int, tokens: Sequence[int], status: Status, last: bool
) -> Down:
    generated = messages.Generated(
        session=session.name, round=generation.number, status=status, base=base, tokens=tokens, last=last
    )
    return Down(generated=generated)


def _add_times(frame: messages.Generated, verified: VerifiedRound) -> None:
    verdict, batch = verified.verdict, verified.batch
    assert verdict is not None
    frame.queue_us, frame.verify_us = round(verified.queue_s * 1e6), round(batch.verify_s * 1e6)
    frame.batch_size, frame.batch_number = batch.size, batch.number
    frame.cached, frame.computed = verified.cached, verdict.computed
    frame.drafted, frame.submitted, frame.accepted = (
        verdict.draft.tree.drafted,
        len(verdict.submitted),
        len(verdict.path),
    )
    frame.draft_us = round(verified.pending.draft_s * 1e6)
    frame.padded.extend(verdict.padded)
