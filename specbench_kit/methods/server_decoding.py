"""Leave rounds to the server's own decoding while drafting over the link does not pay."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import fmean
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import Policy
from specbench_kit.methods.base import Latencies
from specbench_kit.methods.round_costs import round_s, verify_s
from specbench_kit.methods.round_time import RoundTime

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

LOSS_SHARE = 0.01
"""The share of all time that attempts to draft may lose against the server's own decoding."""
ROUNDS_TO_LEARN = 20
"""Drafted rounds before they are judged: as long as the slowest published rule takes to choose its first length."""
REQUESTS_TO_LEARN = 6
"""Finished requests before their losses are judged: as few as an interval of a report is made from."""
NEWEST = 0.02
"""The weight of the newest value in a moving mean, once there are enough of them."""


class MovingMean:
    """The mean of some values, in which older ones count less, and its standard error."""

    def __init__(self) -> None:
        self.count, self.mean, self.variance = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        """Add a value; the first ones have the same weight."""
        self.count += 1
        deviation = value - self.mean
        self.mean += self.weight * deviation
        self.variance = (1 - self.weight) * (self.variance + self.weight * deviation**2)

    @property
    def weight(self) -> float:
        """The weight of the newest value."""
        return max(NEWEST, 1 / self.count)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return sqrt(self.weight * self.variance)


@dataclass(slots=True)
class Attempt:
    """The drafted rounds of one request since drafting was last tried, and the seconds that they lost."""

    rounds: int = 0
    lost_s: float = 0.0
    """The seconds by which drafting was slower than the server alone; below zero if it was faster."""


class ServerDecoding(Policy):
    """A policy that drafts while this is faster than the server alone, and leaves rounds to the server otherwise.

    The server is told in advance how many rounds are its own, streams their tokens, and crosses the link once for all
    of them. If not even drafts that are accepted as a whole would pay, nothing is drafted at all. Otherwise drafting is
    measured. The rounds of a request resemble each other, so they tell of that request alone: rounds are left to the
    server if those of the requests at hand lost time, by two standard errors after `ROUNDS_TO_LEARN` rounds of the run,
    or accepted so few tokens that no draft length would pay. Drafting is tried again with a new request, or once a
    further attempt costs no more than `LOSS_SHARE` of the time. Only the latter is left where the requests so far, of
    which there are `REQUESTS_TO_LEARN` at least, lost time by two standard errors of their mean.
    """

    def __init__(self, drafting: Policy, latencies: Latencies, deepest: int) -> None:
        self.drafting, self.latencies, self.deepest = drafting, latencies, deepest
        self.left_to_server = 0
        """The number of further rounds that the server was told to decode by itself."""
        self.time: RoundTime | None = None
        """The time of this round; None if the server decodes it."""
        self.plain_s = 0.0
        """The seconds of the server's own forward for the batch of this round."""
        self.rounds, self.lost_s = 0, 0.0
        """Drafted rounds of the run, and the seconds lost by those that were judged since the last wait."""
        self.accepted, self.rejected = 0, 0
        """The tokens of the run that were accepted, and those at which a draft was rejected."""
        self.attempts: dict[str, Attempt] = {}
        """By running request, its rounds since drafting was last tried."""
        self.request_lost_s: dict[str, float] = {}
        """By running request, the seconds that all its drafted rounds lost."""
        self.round_losses, self.request_losses = MovingMean(), MovingMean()
        """The seconds lost by a request in a drafted round, and in all of its drafted rounds."""

    def draft(self, drafter: "Drafter") -> None:
        drafts = drafter.drafts
        self.plain_s = verify_s(self.latencies, drafts, [0] * len(drafts))
        hopeless = not self.can_pay(drafts, acceptance=1.0)
        if self.left_to_server and not self.requests_lose() and not self.batch_loses(drafts):
            self.left_to_server = 0  # a new request, or one less of those that lost
        if not self.left_to_server and not hopeless:
            self.time = RoundTime(drafter)
            self.drafting.draft(drafter)
            return
        self.time = None
        self.left_to_server = max(self.left_to_server - 1, 1 if hopeless else 0)
        if not self.left_to_server:
            self.attempts.clear()
        for draft in drafts:
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
            self.judge(self.time.seconds(), verdicts)

    def forget(self, request_id: str) -> None:
        self.drafting.forget(request_id)
        self.attempts.pop(request_id, None)
        if request_id not in self.request_lost_s:
            return
        lost_s = self.request_lost_s.pop(request_id)
        self.request_losses.add(lost_s)
        if lost_s > 0 and self.requests_lose() and not self.left_to_server:
            self.leave_to_server()

    def judge(self, seconds: float, verdicts: "Sequence[Verdict]") -> None:
        """Compare a drafted round with as many tokens of the server alone, and leave it rounds after a loss."""
        drafts = [verdict.draft for verdict in verdicts]
        losses_s = [seconds - (len(verdict.path) + 1) * self.plain_s for verdict in verdicts]
        self.rounds += 1
        for verdict, loss_s in zip(verdicts, losses_s, strict=True):
            name = verdict.draft.request_id
            attempt = self.attempts.setdefault(name, Attempt())
            attempt.rounds, attempt.lost_s = attempt.rounds + 1, attempt.lost_s + loss_s
            self.request_lost_s[name] = self.request_lost_s.get(name, 0.0) + loss_s
            self.round_losses.add(loss_s)
        if self.rounds <= ROUNDS_TO_LEARN and self.is_hopeful(drafts):
            return
        self.lost_s = max(0.0, self.lost_s + fmean(losses_s))
        if self.batch_loses(drafts):
            self.leave_to_server()

    def leave_to_server(self) -> None:
        """Leave so many rounds to the server that the loss, and that of another attempt, is `LOSS_SHARE` of them."""
        # The next attempt costs a round trip more: the server streams until it is told to wait again.
        rtt_s = self.latencies.link.rtt_s if self.latencies.link else 0.0
        self.left_to_server = ceil((self.lost_s + rtt_s) / (LOSS_SHARE * self.plain_s))
        self.lost_s = 0.0

    def requests_lose(self) -> bool:
        """Return whether drafting has lost time in the finished requests on average."""
        losses = self.request_losses
        return losses.count >= REQUESTS_TO_LEARN and losses.mean > 2 * losses.error

    def batch_loses(self, drafts: "Sequence[Draft]") -> bool:
        """Return whether drafting has lost time in the rounds of these requests."""
        attempts = [self.attempts[draft.request_id] for draft in drafts if draft.request_id in self.attempts]
        lost_s, rounds = sum(attempt.lost_s for attempt in attempts), sum(attempt.rounds for attempt in attempts)
        margin_s = 2 * sqrt(self.round_losses.variance * rounds)
        return lost_s > margin_s or (lost_s > 0 and not self.is_hopeful(drafts))

    def is_hopeful(self, drafts: "Sequence[Draft]") -> bool:
        """Return whether drafts of some length would pay at the likely acceptance rate."""
        return self.can_pay(drafts, self.likely_acceptance())

    def likely_acceptance(self) -> float:
        """Return the largest acceptance rate that the verdicts so far leave likely: two deviations above the mean.

        The rate has a beta distribution, which was uniform before the first verdict.
        """
        hits, misses = self.accepted + 1, self.rejected + 1
        tested = hits + misses
        return min(1.0, hits / tested + 2 * sqrt(hits * misses / (tested**2 * (tested + 1))))

    def can_pay(self, drafts: "Sequence[Draft]", acceptance: float) -> bool:
        """Return whether drafts of any length would be faster than the server alone at this acceptance rate."""
        expected = 1.0
        for length in range(1, self.deepest + 1):
            expected += acceptance**length
            if expected * self.plain_s > round_s(self.latencies, drafts, length):
                return True
        return False
