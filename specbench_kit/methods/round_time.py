"""The duration of a round, for policies that learn from it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


class RoundTime:
    """The time on the clock from the start of a draft to the arrival of its verdicts."""

    def __init__(self, drafter: "Drafter") -> None:
        self._clock = drafter.clock
        self._started_s = self._clock.now_s()
        self.typical = all(draft.session.produced for draft in drafter.drafts)
        """False if a request of the round has its prefill in it, which takes additional time."""

    def seconds(self) -> float:
        """Return the seconds since the draft began."""
        return self._clock.now_s() - self._started_s
