"""The draft length that takes the least time per token over a link, learned by trying."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods, require
from specbench_kit.methods.round_time import RoundTime

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.verification import Verdict

TYPICAL_MS = 100.0
"""Round time for which `beta` was meant."""


@methods.register("ucb-specstop")
@dataclass(frozen=True)
class UcbSpecStop(Method):
    """Draft exactly k tokens, 1 to `k_max`: the k whose milliseconds per token may yet turn out the lowest.

    Kept for the run, by k: milliseconds of its rounds, tokens that they gave and how many there were; a round in which
    a prompt comes in counts for nothing. The requests of a batch have one k. `estimator=mean` averages the rounds' own
    ratios instead of taking the ratio of the sums. `scale=auto` measures `beta` in rounds of 100 ms. `context=link`
    keeps all that apart for every state of the link, which is how often 1 ms has to be doubled to come to what a
    message has typically taken of late.
    """

    k_max: int = 20
    beta: float = 1.0
    estimator: Literal["ratio", "mean"] = "ratio"
    scale: Literal["auto", "none"] = "auto"
    context: Literal["run", "link"] = "run"
    source = "UCB-SpecStop, arXiv 2606.20591"
    reported_result = "up to 22.4% less time per token than SpecDec++ over a link"
    group = "bandit"
    grid = MappingProxyType({"k_max": (4, 6, 8), "beta": (0.3, 1.0, 3.0), "estimator": ("ratio", "mean")})
    needs = "a deployment"
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        require(self.k_max >= 1, f"ucb-specstop: k_max must be at least 1, not {self.k_max}")
        require(self.beta >= 0, f"ucb-specstop: beta must not be negative, but is {self.beta}")

    def prepare(self, environment: Environment) -> Method:
        environment.require_deployment("ucb-specstop")
        return self

    def policy(self) -> Policy:
        return _UcbSpecStopPolicy(self)


@dataclass
class Arm:
    """What a draft length has come to: milliseconds, tokens, rounds, and the sum of the rounds' own ratios."""

    milliseconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    ratios: float = 0.0

    def learn(self, milliseconds: float, tokens: int) -> None:
        """Take in a round."""
        self.milliseconds += milliseconds
        self.tokens += tokens
        self.rounds += 1
        self.ratios += milliseconds / tokens

    def bound(self, rounds: int, beta: float, estimator: str) -> float:
        """The least milliseconds per token that may be expected after so many rounds of all lengths."""
        if estimator == "mean":
            return self.ratios / self.rounds - beta * sqrt(log(rounds) / self.rounds)
        return self.milliseconds / self.tokens - beta * sqrt(self.rounds * log(rounds)) / self.tokens


def link_state(message_s: float) -> int:
    """Doublings of 1 ms, rounded; 0 for anything below."""
    return max(0, round(log2(1000 * message_s))) if message_s else 0


class _UcbSpecStopPolicy(Policy):
    def __init__(self, options: UcbSpecStop) -> None:
        self.options = options
        self.states: defaultdict[int, list[Arm]] = defaultdict(lambda: [Arm() for _ in range(options.k_max)])
        self.arms = self.states[0]
        """Those of the link's present state."""
        self.length, self.time = 0, None  # type: int, RoundTime | None

    def draft(self, drafter: "Drafter") -> None:
        if self.options.context == "link":
            self.arms = self.states[link_state(drafter.clock.typical_s("link"))]
        self.length, self.time = self._best(), RoundTime(drafter)
        for _ in range(self.length):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        if self.time is not None and self.time.typical:
            tokens = sum(len(verdict.path) + 1 for verdict in verdicts)
            self.arms[self.length - 1].learn(1000 * self.time.seconds(), tokens)

    def _best(self) -> int:
        untried = [length for length, arm in enumerate(self.arms, 1) if not arm.rounds]
        if untried:
            return untried[0]
        rounds = sum(arm.rounds for arm in self.arms)
        mean_ms = sum(arm.milliseconds for arm in self.arms) / rounds
        beta = self.options.beta * (mean_ms / TYPICAL_MS if self.options.scale == "auto" else 1.0)
        bounds = [arm.bound(rounds + 1, beta, self.options.estimator) for arm in self.arms]
        return 1 + bounds.index(min(bounds))
