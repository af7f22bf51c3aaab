"""The time that rounds really spend between devices and server, for policies that follow it as it
changes.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Latencies
from specbench_kit.methods.chosen_length import AcceptanceRate, ChosenLengthPolicy
from specbench_kit.methods.round_costs import RoundTime, draft_s, link_s, verify_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


class LinkEstimate:
    """A moving average of the seconds of a round that neither drafting nor verification explains.

    This is the round trip with all waiting on the way, as a device sees it. The newest round has
    the weight `ema`. Before the first round the estimate is what the deployment expects. Rounds
    with a prompt in them do not count.
    """

    def __init__(self, latencies: Latencies, ema: float) -> None:
        self.latencies = latencies
        self.ema = ema
        self.measured_s: float | None = None
        self._time: RoundTime | None = None
        self._computing_s = 0.0

    def begin(self, drafter: "Drafter", length: int) -> None:
        """Start the measurement of a round that drafts `length` tokens for each request."""
        drafts = drafter.drafts
        self._time = RoundTime(drafter)
        self._computing_s = computing_s(self.latencies, drafts, length)

    def end(self) -> None:
        """Learn from the round whose verdicts have arrived."""
        if self._time is None or not self._time.typical:
            return
        spent_s = max(0.0, self._time.seconds() - self._computing_s)
        if self.measured_s is None:
            self.measured_s = spent_s
        self.measured_s += self.ema * (spent_s - self.measured_s)

    def seconds(self, requests: int, length: int) -> float:
        """Return the expected seconds on the way of the next round, if it drafts `length` tokens
        for each request.
        """
        return (
            link_s(self.latencies, requests, length) if self.measured_s is None else self.measured_s
        )


def computing_s(latencies: Latencies, drafts: "Sequence[Draft]", length: int) -> float:
    """Return the seconds of drafting and verifying `length` tokens of each request, without the
    link.
    """
    return draft_s(latencies, drafts, length) + verify_s(latencies, drafts, [length] * len(drafts))


class FollowingPolicy(ChosenLengthPolicy):
    """A policy that chooses one length for the batch by the time that rounds lately spent on the
    way.
    """

    def __init__(
        self, acceptance: AcceptanceRate, latencies: Latencies, ema: float, *, counts_link: bool
    ) -> None:
        super().__init__(acceptance)
        self.latencies = latencies
        self.counts_link = counts_link
        self.estimate = LinkEstimate(latencies, ema)

    def length_for(self, drafter: "Drafter") -> int:
        length = self.best_length(drafter.drafts)
        self.estimate.begin(drafter, length)
        return length

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        super().observe(verdicts)
        self.estimate.end()

    def round_s(self, drafts: "Sequence[Draft]", length: int) -> float:
        """Return the expected seconds of a round that drafts `length` tokens for each request."""
        way_s = self.estimate.seconds(len(drafts), length) if self.counts_link else 0.0
        return computing_s(self.latencies, drafts, length) + way_s

    @abstractmethod
    def best_length(self, drafts: "Sequence[Draft]") -> int:
        """Return the number of tokens to draft for each request."""
