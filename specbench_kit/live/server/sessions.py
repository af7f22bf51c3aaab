"""SessionTable: what the server remembers of a text; its KV is only a cache of that."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.drafts import require_tokens
from specbench_kit.live.server.limits import ServerLimits
from specbench_kit.live.wire import Status

ENDLESS = 1 << 40
"""The device knows where its text ends."""


@dataclass(slots=True, eq=False)
class ServerSession:
    """One session. Between a draft's arrival and its verdict its text is the verifying thread's."""

    number: int
    text: Session
    sampler: Sampler
    stream: Any = None
    """Where its answers go; None while its device is away."""
    round: int | None = None
    """The last one that was begun; of a session that was opened anew its device says the first."""
    in_flight: bool = False
    closed: bool = False
    last: Any = None
    """The answer to the last round."""
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
        """What its next round will commit, by those before; two to begin with."""
        return (self.committed + 2) / (self.rounds + 1)


@dataclass
class SessionTable:
    """All of them, the one used longest ago first."""

    bounds: ServerLimits
    vocabulary: int
    _held: OrderedDict[str, ServerSession] = field(default_factory=OrderedDict)
    _numbers: int = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[ServerSession]:
        return iter(self._held.values())

    def find(self, name: str, now_s: float) -> ServerSession:
        """The session, which is now used."""
        if name not in self._held:
            raise Refusal(Status.UNKNOWN_SESSION, "open it, with its prompt and what was committed")
        held = self._held[name]
        held.used_s = now_s
        self._held.move_to_end(name)
        return held

    def open(self, frame: Any, now_s: float) -> tuple[ServerSession, ServerSession | None]:
        """The session as it was where the device's text is the start of its own, else anew; then also the old one."""
        known = self._held.get(frame.session)
        if known is not None and _goes_on(known, frame):
            return self.find(frame.session, now_s), None
        require_tokens(frame.prompt, self.vocabulary)
        require_tokens(frame.output, self.vocabulary)
        if not frame.prompt:
            raise Refusal(Status.EMPTY_PROMPT, "a session needs a prompt")
        if len(frame.prompt) + len(frame.output) > self.bounds.context:
            raise Refusal(Status.CONTEXT_FULL, f"this server holds {self.bounds.context} tokens")
        forgotten = self.drop(frame.session) if known is not None else self._make_room()
        self._numbers += 1
        held = ServerSession(self._numbers, _text(frame, now_s), _sampler(frame.sampling), used_s=now_s)
        self._held[frame.session] = held
        return held, forgotten

    def drop(self, name: str) -> ServerSession | None:
        """Forget a session."""
        held = self._held.pop(name, None)
        if held is not None:
            held.closed = True
        return held

    def idle(self, now_s: float) -> list[ServerSession]:
        """Forget those that nobody has used for long."""
        found = [held for held in self if not held.in_flight and now_s - held.used_s > self.bounds.idle_s]
        for held in found:
            self.drop(held.name)
        return found

    def _make_room(self) -> ServerSession | None:
        """Where there are too many, one whose device is away goes; it comes back with all that it needs."""
        if len(self) < self.bounds.sessions:
            return None
        away = next((held for held in self if held.stream is None and not held.in_flight), None)
        if away is None:
            raise Refusal(Status.TOO_MANY_SESSIONS, f"this server holds {self.bounds.sessions}", retry_ms=1000)
        return self.drop(away.name)


def _goes_on(held: ServerSession, frame: Any) -> bool:
    text, wanted = held.text, [*frame.prompt, *frame.output]
    same_start = list(text.request.prompt_ids) == list(frame.prompt) and text.tokens[: len(wanted)] == wanted
    return same_start and held.sampler == _sampler(frame.sampling)


def _text(frame: Any, now_s: float) -> Session:
    prompt = tuple(frame.prompt)
    sampling = frame.sampling
    text = Session(
        Request(frame.session, "", prompt, ENDLESS),
        RequestRandom(sampling.seed, sampling.request),
        frozenset(),
        now_s,
        RequestRecord(frame.session, "", []),
    )
    text.tokens.extend(frame.output)
    return text


def _sampler(sampling: Any) -> Sampler:
    if not (isfinite(sampling.temperature) and sampling.temperature >= 0 and 0 < (sampling.top_p or 1.0) <= 1):
        raise Refusal(Status.BROKEN_SAMPLING, "a temperature is 0 or more, top_p above 0 and up to 1")
    return Sampler(sampling.temperature, sampling.top_p or 1.0, sampling.top_k)
