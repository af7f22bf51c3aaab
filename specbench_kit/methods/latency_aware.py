"""The base of methods that weigh expected tokens against the time of drafting and verifying
them.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from math import ceil, isfinite, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, ClassVar, Self

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ScaledLatency
from specbench_kit.methods.base import (
    LATENCIES,
    Environment,
    Group,
    Latencies,
    Method,
    MethodInputs,
    Policy,
)
from specbench_kit.methods.round_costs import RoundTime, round_s, verify_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@dataclass(frozen=True)
class LatencyAware(Method):
    """A method whose policy needs the pair's latencies, which `prepare` takes from the environment.

    Where a link lies between drafter and verifier, it is part of every round that the policy
    weighs; with `link=false` the policy believes that both are in one place, as they are in most
    papers.
    """

    link: bool = field(default=True, kw_only=True)
    latencies: Latencies | None = field(default=None, init=False, repr=False, kw_only=True)
    server_decodes: bool = field(default=False, init=False, repr=False, kw_only=True)
    """True if rounds in which drafting does not pay go to the server's own decoding."""
    group: ClassVar[Group] = "latency-aware"
    needs = LATENCIES

    @property
    def deepest_draft(self) -> int:
        """Return the largest number of drafted tokens that a round can commit."""
        return self.longest_draft or 1

    def prepare(self, environment: Environment) -> Method:
        return self.with_latencies(environment)

    def with_latencies(self, environment: Environment) -> Self:
        """Return a copy that knows the latencies of the environment, and the link if it is to see
        it.
        """
        ready = copy(self)
        latencies = environment.latencies()
        if (tokens := self.drafting.tokens_per_forward) > 1:
            latencies = latencies._replace(draft=ScaledLatency(latencies.draft, 1 / tokens))
        seen = latencies if self.link else latencies._replace(link=None)
        object.__setattr__(ready, "latencies", seen)
        object.__setattr__(
            ready, "server_decodes", environment.server_decodes and seen.link is not None
        )
        return ready

    def uses(self) -> MethodInputs:
        if self.latencies is None:
            return {}
        draft, verify, link = self.latencies
        models: dict[str, MethodInputs] = {"draft": asdict(draft), "verify": asdict(verify)}  # type: ignore[call-overload]
        if link is not None:
            # JSON has no infinity: a bandwidth that is not stated is unlimited.
            models["link"] = {
                name: value for name, value in asdict(link).items() if isfinite(value)
            }
        return {"latencies": models}

    def policy(self) -> Policy:
        if self.latencies is None:
            raise SkitError(
                f"{self.display_name} needs the latencies of the pair: call prepare first"
            )
        return self.beside_server(self.policy_with(self.latencies), self.latencies)

    def beside_server(self, policy: Policy, latencies: Latencies) -> Policy:
        """Return the policy, which leaves rounds to the server's own decoding if it may."""
        return (
            ServerDecoding(policy, latencies, self.deepest_draft) if self.server_decodes else policy
        )

    @abstractmethod
    def policy_with(self, latencies: Latencies) -> Policy:
        """Return a fresh policy for these latencies."""


LOSS_SHARE = 0.01
"""The share of all time that attempts to draft may lose against the server's own decoding."""
ROUNDS_TO_LEARN = 20
"""Drafted rounds before they are judged: as long as the slowest published rule takes to choose its
first length.
"""
REQUESTS_TO_LEARN = 6
"""Requests before their losses are judged: as few as an interval of a report is made from."""
REQUESTS_KEPT = 50
"""The newest finished requests whose losses are judged."""


@dataclass(slots=True)
class Loss:
    """The seconds that drafting lost in some rounds against the server alone; below zero if it was
    faster.
    """

    rounds: int = 0
    total_s: float = 0.0
    squares: float = 0.0

    def add(self, lost_s: float) -> None:
        """Add a round."""
        self.rounds += 1
        self.total_s += lost_s
        self.squares += lost_s**2

    @property
    def variance(self) -> float:
        """The variance of a round's loss."""
        if not self.rounds:
            return 0.0
        return max(0.0, self.squares / self.rounds - (self.total_s / self.rounds) ** 2)


class ServerDecoding(Policy):
    """A policy that drafts while this is faster than the server alone, and leaves rounds to the
    server otherwise.

    The server is told in advance how many rounds are its own, streams their tokens, and crosses the link once for all
    of them. If not even drafts that are accepted as a whole would pay, nothing is drafted at all. Otherwise drafting is
    measured, and rounds are left to the server after a loss: if the acceptance rate shows that no draft length would
    pay, if the requests so far lost time on average, or if the only request at hand did. The latter two take
    `ROUNDS_TO_LEARN` rounds, and a loss of two standard errors. The rounds of a request resemble each other, so that
    the losses of `REQUESTS_TO_LEARN` requests at least have to tell of all others, and a request that is decoded alone
    is judged by its own rounds.

    Drafting is tried again once a further attempt costs no more than `LOSS_SHARE` of the time. A
    new request that is decoded alone is tried at once, unless the requests so far lost time.
    """

    def __init__(self, drafting: Policy, latencies: Latencies, deepest: int) -> None:
        self.drafting = drafting
        self.latencies = latencies
        self.deepest = deepest
        self.left_to_server = 0
        """The number of further rounds that the server was told to decode by itself."""
        self.time: RoundTime | None = None
        """The time of this round; None if the server decodes it."""
        self.plain_s = 0.0
        """The seconds of the server's own forward for the batch of this round."""
        self.lost_s = 0.0
        """The seconds that the rounds since the last wait lost, as far as later ones did not make
        up for them.
        """
        self.accepted = 0
        self.rejected = 0
        """The tokens of the run that were accepted, and those at which a draft was rejected."""
        self.run = Loss()
        """The loss of every request in every drafted round."""
        self.rounds = 0
        self.attempts: dict[str, Loss] = {}
        """By running request, its rounds since drafting was last tried."""
        self.requests: dict[str, float] = {}
        """By running request, the seconds that all its rounds lost."""
        self.finished: deque[float] = deque(maxlen=REQUESTS_KEPT)
        """The seconds that the newest finished requests lost."""

    def draft(self, drafter: "Drafter") -> None:
        drafts = drafter.drafts
        self.plain_s = verify_s(self.latencies, drafts, [0] * len(drafts))
        hopeless = not self.can_pay(drafts, acceptance=1.0)
        if (
            len(drafts) == 1
            and drafts[0].request_id not in self.attempts
            and not self.requests_lose()
        ):
            self.left_to_server = 0
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
        if request_id in self.requests:
            self.finished.append(self.requests.pop(request_id))

    def judge(self, seconds: float, verdicts: "Sequence[Verdict]") -> None:
        """Compare a drafted round with as many tokens of the server alone, and leave it rounds
        after a loss.
        """
        names = [verdict.draft.request_id for verdict in verdicts]
        losses_s = [seconds - (len(verdict.path) + 1) * self.plain_s for verdict in verdicts]
        hopeful = self.can_pay([verdict.draft for verdict in verdicts], self.likely_acceptance())
        self.rounds += 1
        for name, loss_s in zip(names, losses_s, strict=True):
            self.run.add(loss_s)
            attempt = self.attempts.setdefault(name, Loss())
            if self.rounds > ROUNDS_TO_LEARN:
                attempt.add(loss_s)
                self.requests[name] = self.requests.get(name, 0.0) + loss_s
        if hopeful and self.rounds <= ROUNDS_TO_LEARN:
            return
        self.lost_s = max(0.0, self.lost_s + fmean(losses_s))
        if self.lost_s and (
            not hopeful or self.requests_lose() or (len(names) == 1 and self.loses(names[0]))
        ):
            # The next attempt costs a round trip more: the server streams until it is told to wait
            # again.
            next_loss_s = self.lost_s + (self.latencies.link.rtt_s if self.latencies.link else 0.0)
            self.left_to_server = ceil(next_loss_s / (LOSS_SHARE * self.plain_s))
            self.lost_s = 0.0

    def loses(self, request_id: str) -> bool:
        """Return whether drafting has lost time in the rounds of this request."""
        attempt = self.attempts[request_id]
        return attempt.total_s > 2 * sqrt(self.run.variance * attempt.rounds)

    def requests_lose(self) -> bool:
        """Return whether drafting has lost time in the requests on average."""
        losses_s = [*self.finished, *self.requests.values()]
        if len(losses_s) < REQUESTS_TO_LEARN:
            return False
        return fmean(losses_s) > 2 * stdev(losses_s) / sqrt(len(losses_s))

    def likely_acceptance(self) -> float:
        """Return the largest acceptance rate that the verdicts so far leave likely: two deviations
        above the mean.

        The rate has a beta distribution, which was uniform before the first verdict.
        """
        hits = self.accepted + 1
        misses = self.rejected + 1
        tested = hits + misses
        return min(1.0, hits / tested + 2 * sqrt(hits * misses / (tested**2 * (tested + 1))))

    def can_pay(self, drafts: "Sequence[Draft]", acceptance: float) -> bool:
        """Return whether drafts of any length would be faster than the server alone at this
        acceptance rate.
        """
        expected = 1.0
        for length in range(1, self.deepest + 1):
            expected += acceptance**length
            if expected * self.plain_s > round_s(self.latencies, drafts, length):
                return True
        return False
