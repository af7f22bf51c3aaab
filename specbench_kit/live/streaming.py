"""Responses that a server decodes by itself and streams: the loop on this side, and the contract of
a stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench_kit.decoding.clock import MeasuringClock, monotonic_s
from specbench_kit.decoding.detail import RoundDetail
from specbench_kit.decoding.loop import DecodingSetup, Loop, mark_round
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree


@dataclass(frozen=True, slots=True)
class StreamedRound:
    """Tokens of a request that a server committed in one forward, and when they arrived here.

    The seconds are the server's share; if it does not state `verify_s`, the whole wait counts as
    verification.
    """

    request_id: str
    tokens: Sequence[int]
    arrived_s: float
    drafted: int = 0
    submitted: int = 0
    accepted: int = 0
    computed: int = 1
    queue_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float | None = None
    padded: Sequence[int] = ()
    """The round's row in a batch of several, as `RoundRecord` has it."""
    forced: int = 0
    """The number of tokens, the last of all, that the server did not verify."""
    forbidden: int = 0
    forced_submitted: int = 0
    forced_accepted: int = 0


class TokenStream(Protocol):
    """The responses of a server to several requests at a time."""

    def begin(self, session: Session) -> None:
        """Ask for the response to a request."""

    def receive(self) -> Sequence[StreamedRound]:
        """Wait until tokens of any request have arrived, and return them in order."""

    def end(self, session: Session) -> None:
        """Free what a finished request held."""


@dataclass(frozen=True, slots=True)
class _FinishedRound:
    """A streamed round with what a view of its tokens needs."""

    request_id: str
    root: int
    tokens: Sequence[int]
    committed: int

    def detail(self) -> RoundDetail:
        """Return the accepted tokens as a chain: drafts stay on the server."""
        *accepted, bonus = self.tokens
        nodes = list(range(1, len(accepted) + 1))
        return RoundDetail(
            tokens=[self.root, *accepted],
            parents=[*TokenTree(self.root).parents, *range(len(accepted))],
            probabilities=[1.0] * (len(accepted) + 1),
            submitted=nodes,
            path=nodes,
            bonus=bonus,
            committed=self.committed,
            inherited=0,
            proactive=0,
        )


class StreamedLoop(Loop):
    """Decodes requests by a server that streams its tokens: the link is paid once, and later tokens
    come at its pace.

    The server goes on while this loop stands still, so a turn must end with no request in flight.
    """

    runs_on = True

    def __init__(
        self,
        stream: TokenStream,
        clock: MeasuringClock,
        setup: DecodingSetup,
    ) -> None:
        super().__init__(clock, setup)
        self._stream = stream
        self._latest_s: dict[str, float] = {}
        """When the latest tokens of a request arrived, since the arrival of the request."""

    def run_round(self) -> Sequence[_FinishedRound]:
        """Wait for tokens and commit them."""
        with self.clock.phase("verify"):
            rounds = self._stream.receive()
        with self.clock.phase("commit"):
            finished = [self._commit(streamed) for streamed in rounds]
        self.clock.take()
        return [streamed for streamed in finished if streamed is not None]

    def admit(self, session: Session) -> None:
        """Ask for the response to a new request."""
        self._latest_s[session.request.id] = 0.0
        self._stream.begin(session)

    def release(self, session: Session) -> None:
        """Free a finished request."""
        del self._latest_s[session.request.id]
        self._stream.end(session)

    def _commit(self, streamed: StreamedRound) -> _FinishedRound | None:
        session = next(
            (own for own in self.sessions if own.request.id == streamed.request_id), None
        )
        if session is None or session.finish_reason is not None:
            return None
        root = session.tokens[-1]
        verified = streamed.tokens[: len(streamed.tokens) - streamed.forced]
        committed = session.commit(verified)
        if streamed.forced and session.finish_reason is None:
            session.commit(streamed.tokens[len(verified) :])
        session.record.rounds.append(self._record(session, streamed, committed))
        if self.clock.timeline is not None:
            mark_round(self.clock, session)
        return _FinishedRound(streamed.request_id, root, verified, committed)

    def _record(self, session: Session, streamed: StreamedRound, committed: int) -> RoundRecord:
        """Return the round's line; what its server does not account for was spent on the way."""
        waited_s = monotonic_s() - streamed.arrived_s
        latest_s = self._latest_s[streamed.request_id]
        end_s = max(latest_s, self.clock.now_s() - waited_s - session.arrival_s)
        self._latest_s[streamed.request_id] = end_s
        taken_s = end_s - latest_s
        verify_s = taken_s if streamed.verify_s is None else streamed.verify_s
        server_s = streamed.queue_s + streamed.draft_s + verify_s
        return RoundRecord(
            drafted=streamed.drafted,
            submitted=streamed.submitted,
            accepted=streamed.accepted,
            committed=committed,
            prefill_s=0.0,
            draft_s=streamed.draft_s,
            policy_s=0.0,
            link_s=max(0.0, taken_s - server_s),
            queue_s=streamed.queue_s,
            verify_s=verify_s,
            commit_s=0.0,
            end_s=end_s,
            deepest=streamed.submitted,
            padded=list(streamed.padded),
            forbidden=streamed.forbidden,
            forced=streamed.forced,
            forced_submitted=streamed.forced_submitted,
            forced_accepted=streamed.forced_accepted,
        )
