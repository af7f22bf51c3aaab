"""A response that the server decodes by itself: its limits, and the states between which the event loop moves it.

Also here: devices that are silent: the server goes on with their responses, and they get its tokens when they return.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from specbench_kit.live.connection_options import SHORTEST_SILENCE_S
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.drafts import require_ends
from specbench_kit.live.wire import Refusal, Status


class GenerationState(Enum):
    """Where a generation is."""

    RUNS = auto()
    """The verification thread begins each round as soon as the one before it is verified."""
    PAUSES = auto()
    """Too many of its tokens were not read: the round that is under way is to be the last for now."""
    PARKED = auto()
    """No round of it waits or is verified."""
    ENDS = auto()
    """Its device asked for the end: the round that is under way is to be the last."""
    OVER = auto()


class GenerationEvent(Enum):
    """What the event loop learns of a generation."""

    FULL = auto()
    """Too many answers to its device are unread."""
    READ = auto()
    """Few answers to its device are unread."""
    STOPPED = auto()
    """A round came back after which none was begun."""
    FINISHED = auto()
    """The last round of the response came back."""
    CANCELLED = auto()


TRANSITIONS = {
    (GenerationState.RUNS, GenerationEvent.FULL): GenerationState.PAUSES,
    (GenerationState.PAUSES, GenerationEvent.READ): GenerationState.RUNS,
    (GenerationState.PARKED, GenerationEvent.READ): GenerationState.RUNS,
    (GenerationState.RUNS, GenerationEvent.STOPPED): GenerationState.PARKED,
    (GenerationState.PAUSES, GenerationEvent.STOPPED): GenerationState.PARKED,
    (GenerationState.ENDS, GenerationEvent.STOPPED): GenerationState.OVER,
    (GenerationState.RUNS, GenerationEvent.FINISHED): GenerationState.OVER,
    (GenerationState.PAUSES, GenerationEvent.FINISHED): GenerationState.OVER,
    (GenerationState.ENDS, GenerationEvent.FINISHED): GenerationState.OVER,
    (GenerationState.RUNS, GenerationEvent.CANCELLED): GenerationState.ENDS,
    (GenerationState.PAUSES, GenerationEvent.CANCELLED): GenerationState.ENDS,
    (GenerationState.PARKED, GenerationEvent.CANCELLED): GenerationState.OVER,
}
"""The state that follows; an event that is not named here changes nothing."""


@dataclass(slots=True, eq=False)
class Generation:
    """A response that the server decodes by itself, after a device's frame `number`.

    The event loop alone moves its state. The verification thread commits its tokens and begins its next round at once
    while it runs, unless the event loop is too far behind.
    """

    number: int
    room: int
    """Tokens that it may still commit."""
    ends: frozenset[int]
    round_s: float
    """The time in which each of its rounds should be answered."""
    method: str = ""
    """The spec of the method that drafts at the server; empty for plain decoding."""
    state: GenerationState = GenerationState.RUNS
    finished: bool = False
    """True once its last token is committed."""
    unasked: bool = False
    """True if it goes on for a device that is silent: its tokens are not streamed."""
    most_ahead: float = inf
    """Verified rounds that may wait for the event loop, which may be busy while tokens come."""
    verified: int = 0
    """Rounds so far; the verification thread counts them."""
    answered: int = 0
    """Those of them whose tokens were sent; the event loop counts them."""

    def cut(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens up to an end or the limit; either finishes the generation."""
        taken = list(tokens[: self.room])
        end = next((index for index, token in enumerate(taken) if token in self.ends), None)
        if end is not None:
            del taken[end + 1 :]
        self.room -= len(taken)
        self.finished = end is not None or self.room == 0
        return taken

    @property
    def goes_on(self) -> bool:
        """Return True if its next round may begin."""
        is_ahead = self.verified - self.answered >= self.most_ahead
        return self.state is GenerationState.RUNS and not (self.finished or is_ahead)

    def move(self, event: GenerationEvent) -> None:
        """Move to the state that follows an event."""
        self.state = TRANSITIONS.get((self.state, event), self.state)


SHORTEST_MS = round(SHORTEST_SILENCE_S * 1e3)
DEFAULT_ROUND_S = 60.0


@dataclass(slots=True)
class SilenceBound:
    """After how long a silence the server decodes by itself, and up to where.

    `end` is the length of the whole text, prompt included, that the response may reach.
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


def read_silence_bound(frame: messages.Open, limits: ServerLimits, vocabulary: int) -> SilenceBound | None:
    """Return the bound that a device gives with its session; raise Refusal if it is none that a server can keep.

    A device that sends drafts ahead is never waited for: no silence is too long, and only the end counts.
    """
    end = min(limits.context, len(frame.prompt) + frame.max_tokens)
    if frame.ahead:
        if frame.ahead > limits.ahead:
            raise Refusal(Status.TOO_MANY_AHEAD, f"{frame.ahead} drafts ahead; this server takes {limits.ahead}")
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
