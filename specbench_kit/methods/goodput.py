"""One draft length for the whole batch: the one with the most expected tokens per second."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Capability, Latencies, Policy, methods, require
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import round_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

PROBE = 10
"""Every tenth decision not to draft drafts one token all the same, or the acceptance rate would
never change.
"""


@methods.register("goodput")
@dataclass(frozen=True)
class Goodput(LatencyAware):
    """Draft the number of tokens with the most expected tokens per second of the batch.

    It is decided every `interval` rounds, from the first round on (in the authors' code, which
    begins with length 0, only once the first `interval` is over). Lengths from 0 to `max_draft` are
    tried upwards until the expected speed falls; length 0 is weighted by `bias`. The run keeps one
    acceptance rate, which starts at `initial_acceptance`: a moving average, weighted by `ema`, of
    accepted over verified tokens. Tokens after a rejection do not count. As published the average
    is that of the rounds' shares, which is too low for long drafts of few requests; where the link
    is seen, it is the ratio of the averages, and a draft gets shorter only if the shorter length is
    best up to two standard errors above the rate: those rounds are few and long, and a mean of some
    of them is no reason to give up.
    """

    max_draft: int = 8
    initial_acceptance: float = 0.7
    ema: float = 0.15
    interval: int = 20
    bias: float = 1.1
    source = "SmartSpec and TurboSpec, arXiv 2406.14066"
    reported_result = "request latency down by up to 3.2 times against no speculation"
    grid = MappingProxyType(
        {
            "max_draft": (4, 8),
            "initial_acceptance": (0.5, 0.7, 0.8),
            "interval": (5, 20),
            "bias": (1.0, 1.1),
        }
    )
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft", "interval")
        require(self.bias > 0, f"goodput: bias must be above 0, not {self.bias}")
        self.require_share("initial_acceptance", "ema")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _GoodputPolicy(self, latencies)


class _GoodputPolicy(Policy):
    def __init__(self, options: Goodput, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.acceptance = self.assumed_acceptance = options.initial_acceptance
        self.length = 0
        self.rounds = 0
        self.idle_decisions = 0
        self.mean_accepted = 0.0
        self.mean_tested = 0.0

    def draft(self, drafter: "Drafter") -> None:
        if self.rounds % self.options.interval == 0:
            self.length = self._decide(drafter.drafts)
        self.rounds += 1
        self.assumed_acceptance = self.acceptance
        for _ in range(self.length):
            drafter.extend(drafter.drafts)

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted([self.assumed_acceptance] * len(nodes))

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        accepted = sum(len(verdict.path) for verdict in verdicts)
        rejected = sum(len(verdict.path) < len(verdict.submitted) for verdict in verdicts)
        if accepted + rejected and self.latencies.link is None:
            self.acceptance += self.options.ema * (
                accepted / (accepted + rejected) - self.acceptance
            )
        elif accepted + rejected:
            self._average(accepted, accepted + rejected)

    def expected_speeds(
        self, drafts: "Sequence[Draft]", acceptance: float | None = None
    ) -> list[float]:
        """Return the expected tokens per second by draft length, from 0 up to the first fall."""
        acceptance = self.acceptance if acceptance is None else acceptance
        speeds: list[float] = []
        expected = 0.0
        for length in range(self.options.max_draft + 1):
            expected += len(drafts) * acceptance**length
            weight = 1.0 if length else self.options.bias
            speeds.append(weight * expected / round_s(self.latencies, drafts, length))
            if length and speeds[-1] < speeds[-2]:
                break
        return speeds

    def _average(self, accepted: int, tested: int) -> None:
        """Update the acceptance rate as the ratio of two moving averages."""
        if not self.mean_tested:
            # The initial rate counts as a round that tested as many tokens as the first one.
            self.mean_accepted = self.acceptance * tested
            self.mean_tested = float(tested)
        self.mean_accepted += self.options.ema * (accepted - self.mean_accepted)
        self.mean_tested += self.options.ema * (tested - self.mean_tested)
        self.acceptance = self.mean_accepted / self.mean_tested

    def _decide(self, drafts: "Sequence[Draft]") -> int:
        best = self._fastest(drafts, self.acceptance)
        if self.latencies.link is not None and best < self.length:
            best = min(self.length, self._fastest(drafts, self._likely_acceptance()))
        if best:
            return best
        self.idle_decisions += 1
        return 1 if self.idle_decisions % PROBE == 0 else 0

    def _fastest(self, drafts: "Sequence[Draft]", acceptance: float) -> int:
        speeds = self.expected_speeds(drafts, acceptance)
        return speeds.index(max(speeds))

    def _likely_acceptance(self) -> float:
        """Return the largest acceptance rate that the rounds leave likely: two standard errors
        above the mean.
        """
        weight = self.options.ema / (2 - self.options.ema)
        tested = self.mean_tested / weight if weight else inf
        return min(
            1.0, self.acceptance + 2 * sqrt(self.acceptance * (1 - self.acceptance) / tested)
        )
