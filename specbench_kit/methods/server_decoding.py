"""Leave rounds to the server's own decoding while drafting over the link does not pay."""

from collections.abc import Sequence
from math import ceil, sqrt
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import Policy
from specbench_kit.methods.base import Latencies
from specbench_kit.methods.round_costs import round_s, verify_s
from specbench_kit.methods.round_time import RoundTime

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

LOSS_SHARE = 0.01
"""The share of all time that drafting may lose against the server's own decoding, to learn whether it pays."""
ROUNDS_TO_LEARN = 20
"""Drafted rounds before they are judged: as long as the slowest published rule takes to choose its first length."""
NEWEST = 0.02
"""The weight of the newest drafted round in the mean loss, once there are enough of them."""


class ServerDecoding(Policy):
    """A policy that drafts while this is faster than the server alone, and leaves rounds to the server otherwise.

    The server is told in advance how many rounds are its own, streams their tokens, and crosses the link once for all
    of them. If not even drafts that are accepted as a whole would pay, nothing is drafted at all. Otherwise drafting is
    measured, and after a loss it is tried again once this costs no more than `LOSS_SHARE` of the time. A loss is one
    that is two standard errors above zero after `ROUNDS_TO_LEARN` rounds, or an acceptance rate at which no draft
    length would pay.
    """

    def __init__(self, drafting: Policy, latencies: Latencies, deepest: int) -> None:
        self.drafting, self.latencies, self.deepest = drafting, latencies, deepest
        self.left_to_server = 0
        """The number of further rounds that the server was told to decode by itself."""
        self.time: RoundTime | None = None
        """The time of this round; None if the server decodes it."""
        self.plain_s = 0.0
        """The seconds of the server's own forward for the batch of this round."""
        self.elapsed_s, self.lost_s, self.rounds = 0.0, 0.0, 0
        self.mean_loss_s, self.loss_variance = 0.0, 0.0
        self.accepted, self.rejected = 0, 0

    def draft(self, drafter: "Drafter") -> None:
        self.plain_s = verify_s(self.latencies, drafter.drafts, [0] * len(drafter.drafts))
        hopeless = not self.can_pay(drafter.drafts, acceptance=1.0)
        if not self.left_to_server and not hopeless:
            self.time = RoundTime(drafter)
            self.drafting.draft(drafter)
            return
        self.time = None
        self.left_to_server = max(self.left_to_server - 1, 1 if hopeless else 0)
        self.elapsed_s += self.plain_s
        for draft in drafter.drafts:
            draft.tree.server_continues = self.left_to_server > 0

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return self.drafting.choose(drafts) if self.time else super().choose(drafts)

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float | None:
        return self.drafting.expects(draft, nodes) if self.time else None

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        if self.time is None:
            return
        self.drafting.observe(verdicts)
        for verdict in verdicts:
            deepest = max(map(verdict.draft.tree.depth, verdict.submitted), default=0)
            self.accepted += len(verdict.path)
            self.rejected += len(verdict.path) < deepest
        if self.time.typical:
            tokens = sum(len(verdict.path) + 1 for verdict in verdicts) / len(verdicts)
            hopeful = self.can_pay([verdict.draft for verdict in verdicts], self.likely_acceptance())
            self.judge(self.time.seconds(), tokens, hopeful=hopeful)

    def forget(self, request_id: str) -> None:
        self.drafting.forget(request_id)

    def can_pay(self, drafts: "Sequence[Draft]", acceptance: float) -> bool:
        """Return whether drafts of any length would be faster than the server alone at this acceptance rate."""
        expected = 1.0
        for length in range(1, self.deepest + 1):
            expected += acceptance**length
            if expected * self.plain_s > round_s(self.latencies, drafts, length):
                return True
        return False

    def likely_acceptance(self) -> float:
        """Return the largest acceptance rate that the verdicts so far leave likely: two deviations above the mean.

        The rate has a beta distribution, which was uniform before the first verdict.
        """
        hits, misses = self.accepted + 1, self.rejected + 1
        tested = hits + misses
        return min(1.0, hits / tested + 2 * sqrt(hits * misses / (tested**2 * (tested + 1))))

    def judge(self, seconds: float, tokens: float, *, hopeful: bool) -> None:
        """Compare a drafted round with as many tokens of the server alone, and leave it rounds after a loss."""
        loss_s = seconds - tokens * self.plain_s
        self.rounds += 1
        self.elapsed_s += seconds
        weight = max(NEWEST, 1 / self.rounds)
        deviation_s = loss_s - self.mean_loss_s
        self.mean_loss_s += weight * deviation_s
        self.loss_variance = (1 - weight) * (self.loss_variance + weight * deviation_s**2)
        if hopeful and self.rounds <= ROUNDS_TO_LEARN:
            return
        self.lost_s = max(0.0, self.lost_s + loss_s)
        allowed_s = LOSS_SHARE * self.elapsed_s
        margin_s = 2 * sqrt(weight * self.loss_variance) if hopeful else 0.0
        if self.mean_loss_s > margin_s and self.lost_s > allowed_s:
            # The next attempt costs a round trip more: the server streams until it is told to wait again.
            link = self.latencies.link
            next_loss_s = self.mean_loss_s + (link.rtt_s if link else 0.0)
            excess_s = self.lost_s + next_loss_s - allowed_s
            self.left_to_server = ceil(excess_s / (LOSS_SHARE * self.plain_s))
