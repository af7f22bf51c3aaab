"""A response that the server decodes by itself: its limits, and the flags by which the event loop steers it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Generation:
    """A response that the server decodes by itself, after a device's frame `number`.

    The verification thread commits its tokens and begins its next round at once, unless the event loop has set
    `cancelled` or `paused`. While it is `parked`, no round of it waits or is verified.
    """

    number: int
    room: int
    """Tokens that it may still commit."""
    ends: frozenset[int]
    round_s: float
    """The time in which each of its rounds should be answered."""
    method: str = ""
    """The spec of the method that drafts at the server; empty for plain decoding."""
    finished: bool = False
    cancelled: bool = False
    paused: bool = False
    """True while too many of its tokens were not read."""
    parked: bool = False
    unasked: bool = False
    """True if it goes on for a device that is silent: its tokens are not streamed."""

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
        return not (self.finished or self.cancelled or self.paused)
