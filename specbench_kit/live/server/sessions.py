"""The server's sessions: the text of every request; the KV that the target holds of it is only a
cache.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Protocol

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Constraint, GrammarSpec, spec_of
from specbench_kit.decoding.records import UNLIMITED, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.live.connection_options import SHORTEST_SILENCE_S, TEMPERATURES
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import LONGEST_NAME, Account, Caller, ServerLimits
from specbench_kit.live.server.drafts import require_ends, require_tokens
from specbench_kit.live.server.generation import DEFAULT_ROUND_S, Generation
from specbench_kit.live.server.grammars import ServerGrammars
from specbench_kit.live.wire import Down, Refusal, Status

MOST_LAYERS = 8
"""Layers whose hidden states a session may ask for; an EAGLE head reads three."""
LEAST_TOP_P = 1e-4
SHORTEST_MS = round(SHORTEST_SILENCE_S * 1e3)


class AnswerStream(Protocol):
    """A stream to a device, as a session sees it."""

    def answer(self, frame: Down) -> None:
        """Send a frame to the device."""

    @property
    def unread(self) -> int:
        """The number of frames that were not written to the device."""


@dataclass(frozen=True, slots=True)
class QueuedDraft:
    """A draft that was sent ahead and waits for its turn; at an overload the server does not verify
    it.
    """

    frame: messages.Draft
    arrived_s: float
    degraded: bool


@dataclass(slots=True)
class SilenceBound:
    """After how long a silence of its device the server goes on with a response by itself, and up
    to where.

    The device gets the tokens when it returns. `end` is the length of the whole text, prompt
    included, that the response may reach.
    """

    silence_s: float
    end: int
    ends: frozenset[int]

    def is_reached(self, text: Sequence[int], prompt: int) -> bool:
        """Return True if a text, of which the prompt has so many tokens, has come to its end."""
        return len(text) >= self.end or not self.ends.isdisjoint(text[prompt:])

    def generation(self, round_number: int, text: list[int], prompt: int) -> Generation | None:
        """Return the rest of a response as one generation; None if the response has ended."""
        room = self.end - len(text)
        if self.is_reached(text, prompt):
            return None
        return Generation(round_number, room, self.ends, DEFAULT_ROUND_S, unasked=True)


class UnderWay(Enum):
    """What a session works on that is no generation."""

    ROUND = auto()
    """The verification of a draft, or of one token without one."""


@dataclass(slots=True, eq=False)
class ServerSession:
    """One session. From a draft's arrival to its verdict, `text` belongs to the verification
    thread.

    Its `name` is the device's; other owners may use the same one for sessions of theirs.
    """

    number: int
    name: str
    caller: Caller
    text: Session
    sampler: Sampler
    layers: tuple[int, ...] = ()
    """The target's layers whose hidden states the verdicts bring."""
    stream: AnswerStream | None = None
    """The stream that takes the answers; None while the device is not connected."""
    round: int | None = None
    """The number of the latest round; None before the first, whose number the device chooses."""
    under_way: UnderWay | Generation | None = None
    """What the server works on: a round from its arrival to its answer, or a whole generation."""
    silence: SilenceBound | None = None
    """When the server goes on by itself."""
    ahead: int = 0
    """How many drafts its device sends before their verdicts; 0 if it awaits each verdict."""
    queue: deque[QueuedDraft] = field(default_factory=deque)
    """Drafts that were sent ahead, in the order of their arrival."""
    missed_from: int | None = None
    """The length of the text that the device had when it resumed, until it is told of what it
    missed.
    """
    closed: bool = False
    last_answer: Down | None = None
    """The answer to the latest round, repeated if the device sends the round again."""
    used_s: float = 0.0
    cached: int = 0
    """Tokens in KV."""
    rounds: int = 0
    committed: int = 0

    @property
    def account(self) -> Account:
        return self.caller.account

    @property
    def rules(self) -> tuple[GrammarSpec | None, bool]:
        """The grammar of the text, and whether its forced tokens join it without being verified."""
        return spec_of(self.text.request.constraint), self.text.skip_forced

    def begin_round(self, generation: Generation | None = None) -> None:
        """Note that a round, or a whole generation, is under way."""
        self.account.in_flight += not self.in_flight
        self.under_way = generation or UnderWay.ROUND

    def end_round(self) -> None:
        """Note that nothing is under way any more."""
        self.account.in_flight -= self.in_flight
        self.under_way = None

    @property
    def in_flight(self) -> bool:
        """Return True from the arrival of a round to its answer, and through a whole generation."""
        return self.under_way is not None

    @property
    def generation(self) -> Generation | None:
        """Return what the server decodes by itself at the moment."""
        return self.under_way if isinstance(self.under_way, Generation) else None

    @property
    def decodes_unasked(self) -> bool:
        """Return True while the server goes on for a device that was silent."""
        return self.generation is not None and self.generation.unasked

    @property
    def response_has_ended(self) -> bool:
        """Return True if the text has reached the end that the device named, or its grammar's."""
        if self.text.finish_reason is not None:
            return True
        bound = self.silence
        return bound is not None and bound.is_reached(
            self.text.tokens, len(self.text.request.prompt_ids)
        )

    @property
    def expected_tokens(self) -> float:
        """The tokens that the next round is expected to commit: the mean so far, with one round of
        two before it.
        """
        return (self.committed + 2) / (self.rounds + 1)


class CallingStream(AnswerStream, Protocol):
    """A stream as the handler sees it."""

    caller: Caller
    peer: str
    sessions: dict[str, ServerSession]

    def attach(self, session: ServerSession) -> None:
        """Send the answers of a session over this stream from now on."""


@dataclass
class SessionTable:
    """All sessions, the least recently used one first."""

    limits: ServerLimits
    vocabulary: int
    target_layers: int = 0
    grammars: ServerGrammars = field(default_factory=ServerGrammars)
    _sessions: OrderedDict[tuple[str, str], ServerSession] = field(default_factory=OrderedDict)
    """Sessions by owner and name."""
    _opened: int = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ServerSession]:
        return iter(self._sessions.values())

    def find(self, name: str, owner: str, now_s: float) -> ServerSession:
        """Return an owner's session and mark it as used; raise Refusal if it is unknown."""
        session = self._sessions.get((owner, name))
        if session is None:
            raise Refusal(
                Status.UNKNOWN_SESSION, "open it, with its prompt and its committed tokens"
            )
        session.used_s = now_s
        self._sessions.move_to_end((owner, name))
        return session

    def open(
        self, frame: messages.Open, caller: Caller, now_s: float
    ) -> tuple[ServerSession, ServerSession | None]:
        """Return the session that a device opens or resumes, and the session that was dropped for
        it, if any.

        A session is resumed if the device's text is a prefix of its own: the device may have missed
        the last answers. Any other session of the owner with that name is replaced.
        """
        sampler = read_sampler(frame.sampling)
        existing = self._sessions.get((caller.owner, frame.session))
        layers = self._read_layers(frame.layers)
        constraint = self._read_grammar(frame)
        if len(frame.sampling.request) > LONGEST_NAME:
            raise Refusal(Status.MALFORMED_FRAME, f"a name has up to {LONGEST_NAME} characters")
        # Lengths come first: to read a whole frame of tokens takes the event loop a tenth of a
        # second.
        if len(frame.prompt) + len(frame.output) > self.limits.context:
            raise Refusal(Status.CONTEXT_FULL, f"this server holds {self.limits.context} tokens")
        if existing is not None:
            text = existing.text
            received = [*frame.prompt, *frame.output]
            continues = (
                list(text.request.prompt_ids) == list(frame.prompt)
                and text.tokens[: len(received)] == received
            )
            kept = (existing.sampler, existing.layers, bool(existing.ahead), existing.rules)
            rules = (spec_of(constraint), frame.skip_forced)
            if continues and kept == (sampler, layers, bool(frame.ahead), rules):
                return self.find(frame.session, caller.owner, now_s), None
        require_tokens(frame.prompt, self.vocabulary)
        require_tokens(frame.output, self.vocabulary)
        if not frame.prompt:
            raise Refusal(Status.EMPTY_PROMPT, "a session needs a prompt")
        silence = read_silence_bound(frame, self.limits, self.vocabulary)
        text = self._read_text(frame, constraint, now_s)
        dropped = self.drop(existing) if existing is not None else self._make_room(caller.account)
        self._opened += 1
        session = ServerSession(
            self._opened,
            frame.session,
            caller,
            text,
            sampler,
            layers,
            silence=silence,
            used_s=now_s,
        )
        session.ahead = frame.ahead
        self._sessions[caller.owner, frame.session] = session
        caller.account.sessions += 1
        return session, dropped

    def _read_layers(self, layers: Sequence[int]) -> tuple[int, ...]:
        """Return the layers whose hidden states a device asks for; raise Refusal if the target does
        not have them.
        """
        if len(layers) > MOST_LAYERS or max(layers, default=0) > self.target_layers:
            raise Refusal(
                Status.BROKEN_STATES,
                f"at most {MOST_LAYERS} layers from 0 to {self.target_layers} can be asked for, not "
                f"{list(layers[: MOST_LAYERS + 1])}",
            )
        return tuple(layers)

    def _read_grammar(self, frame: messages.Open) -> Constraint | None:
        """Return the constraint of the grammar that a device names; raise Refusal if there is
        none, or it cannot be followed in such a session.
        """
        constraint = self.grammars.find(frame.grammar)
        if constraint is not None and max(1, len(frame.output)) > frame.max_tokens:
            raise Refusal(
                Status.BROKEN_GRAMMAR,
                f"an output of {len(frame.output)} tokens, and max_tokens is {frame.max_tokens}",
            )
        if frame.skip_forced and (constraint is None or frame.layers or frame.ahead):
            raise Refusal(
                Status.BROKEN_GRAMMAR,
                "skip_forced needs a grammar, and goes with no hidden states and no drafts ahead",
            )
        return constraint

    def _read_text(
        self, frame: messages.Open, constraint: Constraint | None, now_s: float
    ) -> Session:
        """Return the text of a new session; raise Refusal if its output does not follow its
        grammar.
        """
        # The device decides where its response ends, but that forced tokens go no further.
        longest = min(frame.max_tokens, self.limits.context - len(frame.prompt))
        limit = UNLIMITED if constraint is None else longest
        # The device's name for the session may be that of another owner's.
        request = Request(
            f"{self._opened + 1}", "", tuple(frame.prompt), limit, constraint=constraint
        )
        text = Session(
            request,
            RequestRandom(frame.sampling.seed, frame.sampling.request),
            frozenset() if constraint is None else constraint.eos_ids,
            now_s,
            RequestRecord(frame.session, "", []),
            frame.skip_forced,
        )
        if constraint is None:
            text.tokens.extend(frame.output)
            return text
        try:
            taken = text.commit(frame.output)
        except SkitError as error:
            reason = f"the output does not follow it: {error}"
            raise Refusal(Status.BROKEN_GRAMMAR, reason) from error
        if taken < len(frame.output):
            raise Refusal(Status.BROKEN_GRAMMAR, "the output goes on behind its end")
        return text

    def drop(self, session: ServerSession) -> ServerSession:
        """Forget a session."""
        if not session.closed:
            session.closed = True
            session.end_round()
            session.account.sessions -= 1
            del self._sessions[session.caller.owner, session.name]
        return session

    def drop_idle(self, now_s: float) -> list[ServerSession]:
        """Forget the sessions that were not used for `idle_s`, and return them."""
        idle = [
            session
            for session in self._sessions.values()
            if not session.in_flight and now_s - session.used_s > self.limits.idle_s
        ]
        for session in idle:
            self.drop(session)
        return idle

    def silent(self, now_s: float) -> list[ServerSession]:
        """Return the sessions whose devices sent nothing for longer than they said that they
        would.
        """
        return [
            session
            for session in self
            if session.silence is not None
            and session.round is not None
            and not session.in_flight
            and now_s - session.used_s > session.silence.silence_s
        ]

    def _make_room(self, account: Account) -> ServerSession | None:
        """Drop a session whose device is not connected if there is no room; raise Refusal if all
        are connected.

        Nothing is lost: a device that returns opens its session again with its prompt and output.
        """
        full = len(self) >= self.limits.sessions
        if not full and account.sessions < account.most_sessions:
            return None
        unused = [session for session in self if session.stream is None and not session.in_flight]
        own = [session for session in unused if session.account is account]
        if own:
            return self.drop(own[0])
        if full and unused and account.sessions < account.most_sessions:
            return self.drop(unused[0])
        most = min(self.limits.sessions, account.most_sessions)
        raise Refusal(
            Status.TOO_MANY_SESSIONS, f"this server holds {most} for {account.name}", retry_ms=1000
        )


def read_silence_bound(
    frame: messages.Open, limits: ServerLimits, vocabulary: int
) -> SilenceBound | None:
    """Return the bound that a device gives with its session; raise Refusal if it is none that a
    server can keep.

    A device that sends drafts ahead is never waited for: no silence is too long, and only the end
    counts.
    """
    end = min(limits.context, len(frame.prompt) + frame.max_tokens)
    if frame.ahead:
        if frame.ahead > limits.ahead:
            raise Refusal(
                Status.TOO_MANY_AHEAD,
                f"{frame.ahead} drafts ahead; this server takes {limits.ahead}",
            )
        if frame.layers or frame.max_tokens == 0 or frame.silence_ms:
            reason = "a session with drafts ahead needs max_tokens, and goes with no hidden states and no silence"
            raise Refusal(Status.BROKEN_DEADLINE, reason)
        require_ends(frame.ends, vocabulary)
        return SilenceBound(inf, end, frozenset(frame.ends))
    if frame.silence_ms == 0:
        return None
    if frame.silence_ms < SHORTEST_MS or frame.max_tokens == 0 or frame.layers:
        raise Refusal(
            Status.BROKEN_DEADLINE,
            f"a silence has at least {SHORTEST_MS} ms, needs max_tokens, and goes with no hidden states",
        )
    require_ends(frame.ends, vocabulary)
    return SilenceBound(frame.silence_ms / 1e3, end, frozenset(frame.ends))


def read_sampler(sampling: messages.Sampling) -> Sampler:
    """Return the sampler that a device asks for; a top_p of 0 was not sent and means 1.

    Values beyond the bounds would make the target's distribution NaN, or are not meant by anybody.
    """
    temperature = sampling.temperature
    top_p = sampling.top_p or 1.0
    lowest, highest = TEMPERATURES
    if not ((temperature == 0 or lowest <= temperature <= highest) and LEAST_TOP_P <= top_p <= 1):
        raise Refusal(
            Status.BROKEN_SAMPLING,
            f"a temperature is 0 or from {lowest:g} to {highest:g}, and top_p from {LEAST_TOP_P:g} to 1",
        )
    return Sampler(temperature, top_p, sampling.top_k)
