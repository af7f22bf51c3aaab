"""Drafting that waits for no verdict, over a link to a `skit serve`: drafts are sent as they are
made.

The device drafts on as if every token were accepted, and sends each chunk with a hash of the text
before it. The server verifies a chunk that fits its text when its turn comes, drops any other, and
decodes by itself meanwhile. A verdict that differs from the chain ends the chain: what was drafted
behind it is rolled back, and drafting begins anew.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_hex
from threading import Event
from typing import NamedTuple

from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import Clock, MeasuringClock, monotonic_s
from specbench_kit.decoding.constraint import spec_of
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Drafter, PlannedRound
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import RETRYABLE, Down, Status, Up, text_hash
from specbench_kit.live.wire_verifier import (
    MAX_TRIES,
    add_distributions,
    catch_up,
    open_frame,
    require_grammar,
)


@dataclass(slots=True)
class _SentChunk:
    """A chunk of drafted tokens that was sent and not answered yet; `base` tokens stand before
    it.
    """

    base: int
    tokens: list[int]
    frame: Up
    sent_s: float


class _Arrived(NamedTuple):
    """A verdict that waits for its round, with the chunk that it is about, if any; or a suffix, for
    several rounds.
    """

    answer: messages.Verdict
    arrived_s: float
    chunk: _SentChunk | None

    @property
    def tokens(self) -> list[int]:
        """The tokens that it commits."""
        if self.answer.suffix:
            return list(self.answer.suffix)
        rest = [] if self.chunk is None else self.chunk.tokens[self.answer.base - self.chunk.base :]
        return [*rest[: len(self.answer.path)], self.answer.bonus]


@dataclass(slots=True)
class _OpenSession:
    """A session with its name at the server.

    `known` counts the tokens that the server has committed as far as this device has heard. `sent` is the text that was
    drafted and sent, from the prompt on; the chain may reach beyond it.
    """

    session: Session
    name: str
    known: int
    sent: list[int]
    draft: Draft | None = None
    number: int = 0
    """The number of the latest chunk."""
    refusals: int = 0
    unanswered: dict[int, _SentChunk] = field(default_factory=dict)
    """Chunks by their numbers. Each takes a credit of the server's until it is answered."""
    arrived: deque[_Arrived] = field(default_factory=deque)
    ahead: list[int] = field(default_factory=list)
    """Tokens that the server committed while this device was away, and that no round has taken
    yet.
    """
    sent_bytes: int = 0
    stale_bytes: int = 0

    @property
    def heard(self) -> list[int]:
        """The tokens behind the session's text that the server has committed, as far as this device
        has heard.
        """
        heard = [*self.ahead, *(token for arrived in self.arrived for token in arrived.tokens)]
        return heard if self.session.grammar is None else self.session.up_to_end(heard)


@dataclass
class FreeRunningVerifier:
    """Sends chunks of drafted tokens without waiting, and returns the verdicts in the order of the
    text.
    """

    connection: Connection
    sampler: Sampler
    seed: int
    clock: MeasuringClock
    chunk: int
    asynchronous: bool = True
    _sessions: dict[str, _OpenSession] = field(default_factory=dict)
    """Sessions by request id."""
    _by_name: dict[str, _OpenSession] = field(default_factory=dict)
    _nonce: str = field(default_factory=lambda: token_hex(8))
    """Keeps the names of sessions apart from those of other devices."""
    _opened: int = 0

    def admit(self, session: Session) -> None:
        """Open a session for a new request: the server begins to decode at once."""
        opened = _OpenSession(session, "", len(session.tokens), list(session.tokens))
        self._sessions[session.request.id] = opened
        self._name(opened)
        self._open(opened)

    def release(self, session: Session) -> None:
        """Close the session of a finished request; answers that are still on their way are
        ignored.
        """
        opened = self._sessions.pop(session.request.id)
        del self._by_name[opened.name]
        self.connection.send(Up(close=messages.Close(session=opened.name)))

    def commit(self, verdict: Verdict) -> None:
        """Do nothing: the server commits together with its verdict."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Send what is left over of whole chunks; the function returned waits for the next verdict
        of every draft.
        """
        began_s = monotonic_s()
        rounds = [self._sessions[draft.request_id] for draft in drafts]
        for opened, draft in zip(rounds, drafts, strict=True):
            opened.draft = draft
            text = draft.session.tokens
            chain = [*text, *draft.tree.tokens[1:]]
            if len(opened.sent) < len(text) or chain[: len(opened.sent)] != opened.sent:
                opened.sent = list(
                    text
                )  # a wrong token, or the server was faster: the next chunk begins here
            self._send_chunks(opened)
        sending_s = monotonic_s() - began_s
        return lambda: self._receive(rounds, sending_s)

    def offer(self, draft: Draft) -> None:
        """Send the chunks of a draft that have become whole."""
        self._send_chunks(self._sessions[draft.request_id])

    def awaits_answer(self, draft: Draft) -> bool:
        """Return whether no verdict for a draft's next round has arrived."""
        try:
            while (arrived := self.connection.poll(0)) is not None:
                self._take(*arrived)
        except ConnectionLostError:
            return False  # whoever waits for a verdict meets it again, and connects anew
        opened = self._sessions[draft.request_id]
        return not (opened.arrived or opened.ahead)

    def answer_arrived(self) -> bool:
        """Return whether a frame has arrived."""
        return self.connection.answer_arrived

    def _send_chunks(self, opened: _OpenSession) -> None:
        """Send the whole chunks of a chain that were not sent, as far as the server's credit
        goes.
        """
        draft = opened.draft
        assert draft is not None
        text = draft.session.tokens
        tree = draft.tree
        while len(text) + tree.last - len(opened.sent) >= self.chunk:
            if len(opened.unanswered) >= self.connection.welcome.limits.ahead:
                return
            first = len(opened.sent) - len(text) + 1
            nodes = range(first, first + self.chunk)
            tokens = [tree.tokens[node] for node in nodes]
            message = messages.Draft(
                session=opened.name,
                base=len(opened.sent),
                tokens=tokens,
                text_hash=text_hash(opened.sent),
            )
            if tree.sampled:
                add_distributions(message, tree, nodes, self.connection.welcome.limits.candidates)
            self._transmit(opened, _SentChunk(len(opened.sent), tokens, Up(draft=message), 0.0))
            opened.sent += tokens

    def _transmit(self, opened: _OpenSession, chunk: _SentChunk) -> None:
        """Send a chunk under the next number."""
        opened.number += 1
        chunk.frame = Up(
            draft=chunk.frame.draft
        )  # a copy: the one that was sent before may still be on its way
        chunk.frame.draft.session, chunk.frame.draft.round = opened.name, opened.number
        chunk.sent_s = monotonic_s()
        opened.unanswered[opened.number] = chunk
        opened.sent_bytes += chunk.frame.ByteSize()
        self.connection.send(chunk.frame)

    def _receive(self, rounds: Sequence[_OpenSession], sending_s: float) -> list[Verdict]:
        """Wait for the next verdict of every session; connect again if the connection is lost."""
        began_s = monotonic_s()
        while any(not (opened.arrived or opened.ahead) for opened in rounds):
            try:
                self._take(*self.connection.receive())
            except ConnectionLostError:
                self.connection.reconnect()
                for opened in self._sessions.values():
                    self._resume(opened)
        for opened in rounds:
            if not opened.ahead and opened.arrived[0].answer.suffix:
                opened.ahead = list(opened.arrived.popleft().answer.suffix)
        arrived = [opened.arrived[0] for opened in rounds if not opened.ahead]
        verdicts = [self._next_verdict(opened) for opened in rounds]
        charged_s = sending_s + monotonic_s() - began_s
        if arrived:
            # The engine charges the whole wait to the phase "verify". A chunk was on the link while
            # others were verified; nobody asked for a token that the server decoded by itself.
            last = max(arrived, key=lambda one: one.arrived_s)
            queue_s = last.answer.queue_us / 1e6
            verify_s = last.answer.verify_us / 1e6
            away_s = 0.0 if last.chunk is None else last.arrived_s - last.chunk.sent_s
            link_s = max(0.0, away_s - queue_s - verify_s)
            self.clock.split(
                "verify", verify_s, charged_s, [("link", link_s, 2), ("queue", queue_s, 1)]
            )
        return verdicts

    def _next_verdict(self, opened: _OpenSession) -> Verdict:
        """Return the verdict of a session's next round, with the bytes that were sent since its
        last one.
        """
        draft = opened.draft
        assert draft is not None
        text = draft.session.tokens
        if opened.ahead:
            nodes = range(1, 1 + min(draft.tree.last, len(opened.sent) - len(text)))
            verdict = catch_up(draft, list(nodes), opened.ahead)
        else:
            verdict = _read_verdict(draft, *opened.arrived.popleft())
        verdict = replace(
            verdict.with_counts(), sent_bytes=opened.sent_bytes, stale_bytes=opened.stale_bytes
        )
        opened.sent_bytes = opened.stale_bytes = 0
        return verdict

    def _take(self, arrived_s: float, frame: Down) -> None:
        """Note an answer, or begin a refused session anew; answers to other rounds are ignored."""
        kind = frame.WhichOneof("kind")
        if kind == "refused" and (opened := self._by_name.get(frame.refused.session)) is not None:
            self._retry(opened, frame.refused)
        if kind != "verdict" or (opened := self._by_name.get(frame.verdict.session)) is None:
            return
        answer = frame.verdict
        chunk = opened.unanswered.pop(answer.round, None)
        if answer.status == Status.STALE:
            opened.stale_bytes += 0 if chunk is None else chunk.frame.ByteSize()
        elif answer.status == Status.REBASE:
            # What was committed while this device was away; some of it may have arrived before.
            missed = list(answer.suffix)[max(0, opened.known - answer.base) :]
            if missed:
                opened.known += len(missed)
                opened.arrived.append(_Arrived(messages.Verdict(suffix=missed), arrived_s, None))
        elif answer.base == opened.known:
            opened.refusals = 0
            opened.known += len(answer.path) + 1
            opened.arrived.append(_Arrived(answer, arrived_s, chunk))
        elif answer.base > opened.known:
            raise SkitError("the server left out a verdict: it is broken")
        if opened.draft is not None:
            self._send_chunks(opened)  # the answer has returned a credit

    def _retry(self, opened: _OpenSession, refused: messages.Refused) -> None:
        """Begin a refused session anew; raise SkitError if the server would refuse again."""
        if refused.round and refused.round not in opened.unanswered:
            return  # a frame that was sent again since
        status = Status(refused.status)
        opened.refusals += 1
        if (
            status is not Status.UNKNOWN_SESSION and status not in RETRYABLE
        ) or opened.refusals > MAX_TRIES:
            raise SkitError(f"the server refused a draft: {status.name}: {refused.reason}")
        Event().wait(refused.retry_ms / 1000)
        if status is Status.UNKNOWN_SESSION:
            # What the forgotten session has committed may still be on its way, and the new one
            # commits it again, in other verdicts and, where tokens are drawn, with other tokens.
            self._name(opened)
        self._resume(opened)

    def _resume(self, opened: _OpenSession) -> None:
        """Open a session again and send those of its unanswered chunks again that the device still
        stands by.
        """
        self._open(opened)
        chunks = opened.unanswered.values()
        opened.unanswered = {}
        for chunk in chunks:
            end = chunk.base + len(chunk.tokens)
            if end > opened.known and opened.sent[chunk.base : end] == chunk.tokens:
                self._transmit(opened, chunk)
            else:
                opened.stale_bytes += chunk.frame.ByteSize()

    def _name(self, opened: _OpenSession) -> None:
        """Give a session a name of its own, so that answers to one that the server has forgotten
        are ignored.
        """
        self._by_name.pop(opened.name, None)
        self._opened += 1
        opened.name = f"{self._nonce}/{self._opened}/{opened.session.request.id}"
        self._by_name[opened.name] = opened

    def _open(self, opened: _OpenSession) -> None:
        require_grammar(self.connection, spec_of(opened.session.request.constraint))
        most = self.connection.welcome.limits.ahead
        require_ahead(self.connection.address, most)
        frame = open_frame(
            opened.session, opened.name, self.sampler, self.seed, ahead=most, heard=opened.heard
        )
        self.connection.send(Up(open=frame))


def require_ahead(address: str, most: int, needed: int = 1) -> None:
    """Raise SkitError if a server takes fewer drafts ahead of their verdicts than a method
    sends.
    """
    if not most:
        raise SkitError(
            f"{address} is a skit serve of an earlier version, which takes one draft at a time: serve with this "
            "version, or name pearl"
        )
    if needed > most:
        raise SkitError(
            f"{address} takes {most} drafts ahead of their verdicts: give in_flight={most} or less"
        )


def _read_verdict(
    draft: Draft, answer: messages.Verdict, _: float, chunk: _SentChunk | None
) -> Verdict:
    """Return the verdict of an answer: on the rest of a chunk behind the text, or a token without
    any draft.
    """
    text = draft.session.tokens
    tokens = [] if chunk is None else chunk.tokens[len(text) - chunk.base :]
    nodes = list(range(1, len(tokens) + 1))
    drafted = list(draft.tree.tokens[1 : len(tokens) + 1])
    if list(answer.path) != nodes[: len(answer.path)] or (tokens and drafted != tokens):
        raise SkitError(
            "the server verified tokens that were not sent, or rolled back: it is broken"
        )
    return Verdict(
        draft,
        nodes,
        nodes[: len(answer.path)],
        answer.bonus,
        max(1, answer.computed),
        padded=list(answer.padded),
    )


class AnswerPollingDrafter:
    """Wraps a drafter for methods that draft while they wait; `answered` polls whether an answer
    has arrived.
    """

    def __init__(self, drafter: Drafter, answered: Callable[[], bool]) -> None:
        self._drafter = drafter
        self._answered = answered

    @property
    def clock(self) -> Clock:
        return self._drafter.clock

    @property
    def drafts(self) -> list[Draft]:
        return self._drafter.drafts

    def awaits_answer(self, draft: Draft) -> bool:
        return not self._answered()

    def has_reached_server(self, draft: Draft, node: int) -> bool:
        return False  # the server alone knows

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        return self._drafter.foresee(draft, longest)

    def fastest_rounds(
        self, draft: Draft, longest: int, *, server_decodes: bool
    ) -> Mapping[int, PlannedRound] | None:
        return None  # the server's time is measured

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        return self._drafter.begin(sessions)

    def room(self, draft: Draft) -> int:
        return self._drafter.room(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        return self._drafter.extend(drafts)

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        return self._drafter.expand(frontier)

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        self._drafter.commit(draft, path, root, states)

    def release(self, session: Session) -> None:
        self._drafter.release(session)


class FreeRunningDrafter(AnswerPollingDrafter):
    """Wraps a drafter so that what it drafts is offered to the server at once."""

    def __init__(self, drafter: Drafter, verifier: FreeRunningVerifier) -> None:
        super().__init__(drafter, verifier.answer_arrived)
        self._verifier = verifier

    def awaits_answer(self, draft: Draft) -> bool:
        return self._verifier.awaits_answer(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        grown = super().extend(drafts)
        for draft in grown:
            self._verifier.offer(draft)
        return grown
