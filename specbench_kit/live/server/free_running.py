"""Sessions whose devices send drafts before the verdicts on earlier ones: each has a short queue of
drafts.

A draft is verified if it fits the session's text when its turn comes, and dropped otherwise. While
none fits, the server decodes by itself. Everything here runs in the event loop.
"""

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import DEFAULT_DEADLINE_S, Admission
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.drafts import draft_tree, require_draft, require_times
from specbench_kit.live.server.metrics import ServerMetrics
from specbench_kit.live.server.rounds import PendingRound
from specbench_kit.live.server.sessions import QueuedDraft, ServerSession
from specbench_kit.live.wire import Down, Refusal, Status, text_hash


class FreeRunning:
    """Begins the rounds of all sessions with drafts ahead, one at a time for each."""

    def __init__(
        self,
        batch_runner: BatchRunner,
        admission: Admission,
        metrics: ServerMetrics,
        vocabulary: int,
    ) -> None:
        self._batch_runner = batch_runner
        self._admission = admission
        self._limits = admission.limits
        self._metrics = metrics
        self._vocabulary = vocabulary
        self._resting: set[ServerSession] = set()
        """Sessions that the server decodes no further by itself for the time being."""

    def begin(self, session: ServerSession, held: int) -> None:
        """Go on with a session that a device opened or resumed with a text of `held` tokens.

        What was queued is forgotten: a device that lost its connection sends again what it still
        stands by.
        """
        session.queue.clear()
        session.missed_from = held
        self.advance(session)

    def take(self, session: ServerSession, frame: messages.Draft) -> None:
        """Queue a draft; raise Refusal if it is broken, or too many wait."""
        waiting = len(session.queue)
        size = frame.ByteSize() + sum(queued.frame.ByteSize() for queued in session.queue)
        if waiting >= self._limits.ahead or size > self._limits.frame_bytes:
            raise Refusal(
                Status.TOO_MANY_AHEAD, f"{waiting} drafts of this session wait for their turn"
            )
        if not len(session.text.request.prompt_ids) <= frame.base <= self._limits.context:
            raise Refusal(
                Status.WRONG_BASE,
                f"after {frame.base} tokens; this server holds {self._limits.context}",
            )
        degraded = self._admission.require_capacity(session.account, self._batch_runner.waiting)
        require_times(frame)
        if frame.parents:
            raise Refusal(Status.BROKEN_TREE, "a draft that is sent ahead is a chain")
        require_draft(frame, session.sampler, self._limits, self._vocabulary)
        session.round = frame.round
        session.queue.append(QueuedDraft(frame, monotonic_s(), degraded))
        self.advance(session)

    def answered(self, session: ServerSession, verdict: Down) -> None:
        """Send a verdict, unless the device gets its tokens as a part of those that it missed, and
        go on.
        """
        if session.missed_from is None and session.stream is not None:
            session.stream.answer(verdict)
        self.advance(session)

    def wake(self) -> None:
        """Go on with the sessions that rest because of overload, or because their devices did not
        read.
        """
        for session in list(self._resting):
            self.advance(session)

    def advance(self, session: ServerSession) -> None:
        """Begin the next round of a session that has none under way: of a draft, or of one token
        without a draft.
        """
        self._resting.discard(session)
        stream = session.stream
        if session.closed or session.in_flight or stream is None or self._admission.stopping:
            return
        text = session.text.tokens
        missed_from = session.missed_from
        session.missed_from = None
        if missed_from is not None and missed_from < len(text):
            missed = messages.Verdict(
                session=session.name,
                status=Status.REBASE,
                base=missed_from,
                suffix=text[missed_from:],
            )
            stream.answer(Down(verdict=missed))
        while session.queue:
            queued = session.queue.popleft()
            tree = fitting_tree(queued.frame, text, self._vocabulary)
            # Behind the end of a grammar nothing can be verified.
            if tree is not None and session.text.finish_reason is None:
                self._submit(session, tree, queued.frame, queued.arrived_s, queued.degraded)
                return
            self._metrics.stale.inc()
            stale = messages.Verdict(
                session=session.name, round=queued.frame.round, status=Status.STALE
            )
            stream.answer(Down(verdict=stale))
        if session.response_has_ended:
            return
        if (
            self._batch_runner.waiting >= self._limits.waiting
            or stream.unread >= self._limits.credit // 2
        ):
            self._resting.add(session)
            return
        self._submit(session, TokenTree(text[-1]), messages.Draft(), monotonic_s(), degraded=False)

    def _submit(
        self,
        session: ServerSession,
        tree: TokenTree,
        frame: messages.Draft,
        arrived_s: float,
        degraded: bool,
    ) -> None:
        session.begin_round()
        round_s, remaining_s = (
            ms / 1e3 or DEFAULT_DEADLINE_S for ms in (frame.round_ms, frame.remaining_ms)
        )
        draft = Draft(session.text, tree)
        self._batch_runner.submit(
            PendingRound(session, frame.round, draft, arrived_s, round_s, remaining_s, degraded)
        )


def fitting_tree(frame: messages.Draft, text: list[int], vocabulary: int) -> TokenTree | None:
    """Return what is left to verify of a draft after a text; None if it was drafted for another
    text, or nothing is.

    A draft fits that begins within the text, where the text agrees with it up to its end.
    """
    known = len(text) - frame.base
    if not 0 <= known < len(frame.tokens):
        return None
    if list(frame.tokens[:known]) != text[frame.base :] or frame.text_hash != text_hash(
        text[: frame.base]
    ):
        return None
    tree = draft_tree(frame, text[frame.base - 1], vocabulary)
    return tree.rooted_at(known) if known else tree
