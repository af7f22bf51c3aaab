"""How long a round took, for policies that learn from it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


class RoundTime:
    """The clock's time from the start of a draft to when its verdicts are shown."""

    def __init__(self, drafter: "Drafter") -> None:
        self._clock = drafter.clock
        self._began_s = self._clock.now_s()
        self.typical = all(draft.session.produced for draft in drafter.drafts)
        """Whether no request brings its prompt in, which takes a time of its own."""

    def seconds(self) -> float:
        """Until now."""
        return self._clock.now_s() - self._began_s
