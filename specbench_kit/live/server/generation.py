"""A response that the server decodes by itself: its limits, and the states between which the event
loop moves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

DEFAULT_ROUND_S = 60.0
"""The time in which each round of a generation should be answered if its device names none."""


class GenerationState(Enum):
    """Where a generation is."""

    RUNS = auto()
    """The verification thread begins each round as soon as the one before it is verified."""
    PAUSES = auto()
    """Too many of its tokens were not read: the round that is under way is to be the last for
    now.
    """
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

    The event loop alone moves its state. The verification thread commits its tokens and begins its
    next round at once while it runs, unless the event loop is too far behind.
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
