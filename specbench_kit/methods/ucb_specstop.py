"""The draft length with the least time per token over a link, learned by a bandit."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods, require
from specbench_kit.methods.round_costs import RoundTime

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.verification import Verdict

TYPICAL_MS = 100.0
"""The round time, in milliseconds, that the paper's values of `beta` are meant for."""


@methods.register("ucb-specstop")
@dataclass(frozen=True)
class UcbSpecStop(Method):
    """Draft exactly k tokens, 1 to `k_max`, with the k of the lowest lower confidence bound on
    milliseconds per token.

    All requests of a batch draft the same k. The run keeps, by k, the number of rounds, their
    milliseconds and their committed tokens; a round with a prefill does not count.
    `estimator=ratio` divides the sums, `mean` averages the rounds' ratios. `beta` scales the
    confidence bonus; with `scale=auto` it is multiplied by the mean round time over 100 ms.
    `context=link` learns separately for every state of the link: the number of doublings from 1 ms
    to the typical time of a recent message.
    """

    k_max: int = 20
    beta: float = 1.0
    estimator: Literal["ratio", "mean"] = "ratio"
    scale: Literal["auto", "none"] = "auto"
    context: Literal["run", "link"] = "run"
    source = "UCB-SpecStop, arXiv 2606.20591"
    reported_result = "up to 22.4% less time per token than SpecDec++ over a link"
    group = "bandit"
    is_folded = True
    grid = MappingProxyType(
        {"k_max": (4, 6, 8), "beta": (0.3, 1.0, 3.0), "estimator": ("ratio", "mean")}
    )
    needs = "a deployment"
    draft_limit = "k_max"
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        self.require_at_least(1, "k_max")
        require(self.beta >= 0, f"ucb-specstop: beta must not be negative, but is {self.beta}")

    def prepare(self, environment: Environment) -> Method:
        environment.require_deployment("ucb-specstop")
        return self

    def policy(self) -> Policy:
        return _UcbSpecStopPolicy(self)


@dataclass
class LengthTimes:
    """The milliseconds, tokens and rounds of a draft length, and the sum of its rounds'
    milliseconds per token.
    """

    milliseconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    ratios: float = 0.0

    def learn(self, milliseconds: float, tokens: int) -> None:
        """Add a round."""
        self.milliseconds += milliseconds
        self.tokens += tokens
        self.rounds += 1
        self.ratios += milliseconds / tokens

    def bound(self, rounds: int, beta: float, estimator: str) -> float:
        """Return the lower confidence bound on milliseconds per token after `rounds` rounds of all
        lengths together.
        """
        if estimator == "mean":
            return self.ratios / self.rounds - beta * sqrt(log(rounds) / self.rounds)
        return (
            self.milliseconds / self.tokens - beta * sqrt(self.rounds * log(rounds)) / self.tokens
        )


def link_state(message_s: float) -> int:
    """Return the number of doublings, rounded, from 1 ms to the time of a message; at least 0."""
    return max(0, round(log2(1000 * message_s))) if message_s else 0


class _UcbSpecStopPolicy(Policy):
    def __init__(self, options: UcbSpecStop) -> None:
        self.options = options
        self.states = defaultdict[int, list[LengthTimes]](
            lambda: [LengthTimes() for _ in range(options.k_max)]
        )
        self.lengths = self.states[0]
        """The draft lengths in the present state of the link."""
        self.length = 0
        self.time: RoundTime | None = None

    def draft(self, drafter: "Drafter") -> None:
        if self.options.context == "link":
            self.lengths = self.states[link_state(drafter.clock.typical_s("link"))]
        self.length = self._best()
        self.time = RoundTime(drafter)
        for _ in range(self.length):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        if self.time is not None and self.time.typical:
            tokens = sum(len(verdict.path) + 1 for verdict in verdicts)
            self.lengths[self.length - 1].learn(1000 * self.time.seconds(), tokens)

    def _best(self) -> int:
        untried = [length for length, times in enumerate(self.lengths, 1) if not times.rounds]
        if untried:
            return untried[0]
        rounds = sum(times.rounds for times in self.lengths)
        mean_ms = sum(times.milliseconds for times in self.lengths) / rounds
        beta = self.options.beta * (mean_ms / TYPICAL_MS if self.options.scale == "auto" else 1.0)
        bounds = [times.bound(rounds + 1, beta, self.options.estimator) for times in self.lengths]
        return 1 + bounds.index(min(bounds))
