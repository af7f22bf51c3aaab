"""The server's sessions: the text of every request; the KV that the target holds of it is only a cache."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.drafts import require_tokens
from specbench_kit.live.server.generation import Generation
from specbench_kit.live.server.limits import ServerLimits
from specbench_kit.live.wire import Down, Status

MOST_LAYERS = 8
"""Layers whose hidden states a session may ask for; a feature head reads three."""
UNLIMITED = 1 << 40
"""The length limit of a response here: the device decides where its response ends."""


class AnswerStream(Protocol):
    """A stream to a device, as a session sees it."""

    def answer(self, frame: Down) -> None:
        """Send a frame to the device."""

    @property
    def unread(self) -> int:
        """The number of frames that were not written to the device."""


@dataclass(slots=True, eq=False)
class ServerSession:
    """One session. From a draft's arrival to its verdict, `text` belongs to the verification thread."""

    number: int
    text: Session
    sampler: Sampler
    layers: tuple[int, ...] = ()
    """The target's layers whose hidden states the verdicts bring."""
    stream: AnswerStream | None = None
    """The stream that takes the answers; None while the device is not connected."""
    round: int | None = None
    """The number of the latest round; None before the first, whose number the device chooses."""
    in_flight: bool = False
    """True from the arrival of a round to its answer, and through a whole generation."""
    generation: Generation | None = None
    """What the server decodes by itself at the moment."""
    closed: bool = False
    last_answer: Down | None = None
    """The answer to the latest round, repeated if the device sends the round again."""
    used_s: float = 0.0
    cached: int = 0
    """Tokens in KV."""
    rounds: int = 0
    committed: int = 0

    @property
    def name(self) -> str:
        return self.text.request.id

    @property
    def expected_tokens(self) -> float:
        """The tokens that the next round is expected to commit: the mean so far, with one round of two before it."""
        return (self.committed + 2) / (self.rounds + 1)


@dataclass
class SessionTable:
    """All sessions, the least recently used one first."""

    limits: ServerLimits
    vocabulary: int
    target_layers: int = 0
    _sessions: OrderedDict[str, ServerSession] = field(default_factory=OrderedDict)
    _opened: int = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, name: str, now_s: float) -> ServerSession:
        """Return a session and mark it as used; raise Refusal if it is unknown."""
        if name not in self._sessions:
            raise Refusal(Status.UNKNOWN_SESSION, "open it, with its prompt and its committed tokens")
        session = self._sessions[name]
        session.used_s = now_s
        self._sessions.move_to_end(name)
        return session

    def open(self, frame: messages.Open, now_s: float) -> tuple[ServerSession, ServerSession | None]:
        """Return the session that a device opens or resumes, and the session that was dropped for it, if any.

        A session is resumed if the device's text is a prefix of its own: the device may have missed the last answers.
        Any other session of the name is replaced.
        """
        sampler, existing = _read_sampler(frame.sampling), self._sessions.get(frame.session)
        layers = self._read_layers(frame.layers)
        if existing is not None:
            text, received = existing.text, [*frame.prompt, *frame.output]
            continues = list(text.request.prompt_ids) == list(frame.prompt) and text.tokens[: len(received)] == received
            if continues and (existing.sampler, existing.layers) == (sampler, layers):
                return self.find(frame.session, now_s), None
        require_tokens(frame.prompt, self.vocabulary)
        require_tokens(frame.output, self.vocabulary)
        if not frame.prompt:
            raise Refusal(Status.EMPTY_PROMPT, "a session needs a prompt")
        if len(frame.prompt) + len(frame.output) > self.limits.context:
            raise Refusal(Status.CONTEXT_FULL, f"this server holds {self.limits.context} tokens")
        dropped = self.drop(frame.session) if existing is not None else self._make_room()
        self._opened += 1
        text = Session(
            Request(frame.session, "", tuple(frame.prompt), UNLIMITED),
            RequestRandom(frame.sampling.seed, frame.sampling.request),
            frozenset(),
            now_s,
            RequestRecord(frame.session, "", []),
        )
        text.tokens.extend(frame.output)
        session = self._sessions[frame.session] = ServerSession(self._opened, text, sampler, layers, used_s=now_s)
        return session, dropped

    def _read_layers(self, layers: Sequence[int]) -> tuple[int, ...]:
        """Return the layers whose hidden states a device asks for; raise Refusal if the target does not have them."""
        if len(layers) > MOST_LAYERS or max(layers, default=0) > self.target_layers:
            raise Refusal(
                Status.BROKEN_STATES,
                f"at most {MOST_LAYERS} layers from 0 to {self.target_layers} can be asked for, not {list(layers)}",
            )
        return tuple(layers)

    def drop(self, name: str) -> ServerSession | None:
        """Forget a session, and return it if it was known."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.closed = True
        return session

    def drop_idle(self, now_s: float) -> list[ServerSession]:
        """Forget the sessions that were not used for `idle_s`, and return them."""
        idle = [
            session
            for session in self._sessions.values()
            if not session.in_flight and now_s - session.used_s > self.limits.idle_s
        ]
        for session in idle:
            self.drop(session.name)
        return idle

    def _make_room(self) -> ServerSession | None:
        """Drop a session whose device is not connected if the table is full; raise Refusal if all are connected.

        Nothing is lost: a device that returns opens its session again with its prompt and output.
        """
        if len(self) < self.limits.sessions:
            return None
        for session in self._sessions.values():
            if session.stream is None and not session.in_flight:
                return self.drop(session.name)
        raise Refusal(Status.TOO_MANY_SESSIONS, f"this server holds {self.limits.sessions}", retry_ms=1000)


def _read_sampler(sampling: messages.Sampling) -> Sampler:
    """Return the sampler that a device asks for; a top_p of 0 was not sent and means 1."""
    top_p = sampling.top_p or 1.0
    if not (isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < top_p <= 1):
        raise Refusal(Status.BROKEN_SAMPLING, "a temperature is 0 or more, top_p above 0 and up to 1")
    return Sampler(sampling.temperature, top_p, sampling.top_k)
