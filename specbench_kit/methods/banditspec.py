"""A bandit that chooses among draft lengths, or among any chain rules, for each request."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from random import Random
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

from specbench_kit.methods.arms import ArmsMethod, ArmsPolicy
from specbench_kit.methods.base import Capability, Policy, methods, require
from specbench_kit.methods.round_costs import RoundTime

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("banditspec")
@dataclass(frozen=True)
class BanditSpec(ArmsMethod):
    """Choose the arm that drafts each round by a bandit: `ucb`, or `exp3` if rewards may change
    over time.

    Arms draft at most `max_draft` tokens. The reward lies in 0..1. With `reward=rate` it is the round's tokens per
    second over the best round's so far; a round with a prefill does not count. With `reward=length` it is the accepted
    tokens over `max_draft`, by which a longer draft never loses. `radius` scales the confidence bonus of `ucb`, which
    is too wide to matter within one response. Each arm's rounds and rewards are kept until the request ends or, with
    `share=run`, for the run.
    """

    arms: str = "autoregressive+fixed-k.k=1..4"
    max_draft: int = 4
    algorithm: Literal["ucb", "exp3"] = "ucb"
    reward: Literal["rate", "length"] = "rate"
    delta: float = 0.05
    radius: float = 1.0
    share: Literal["request", "run"] = "request"
    source = "BanditSpec, arXiv 2505.15141"
    group = "bandit"
    is_folded = True
    required_capability = Capability.TOKENS  # for the default arms; others may need more
    grid = MappingProxyType(
        {"algorithm": ("ucb", "exp3"), "share": ("request", "run"), "radius": (0.03, 0.1, 0.3, 1.0)}
    )

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        require(0 < self.delta < 1, f"banditspec: delta must lie between 0 and 1, not {self.delta}")
        require(self.radius >= 0, f"banditspec: radius must not be negative, but is {self.radius}")
        self.take_arms(self.arms)

    def policy(self) -> Policy:
        return _BanditSpecPolicy(self)


class Bandit(Protocol):
    """A bandit picks one of several arms and learns the reward, 0 to 1, of the arm that was
    played.
    """

    def pick(self) -> int: ...
    def learn(self, arm: int, reward: float) -> None: ...


def confidence_radius(count: int, rounds: int, arms: int, delta: float) -> float:
    """Return the half-width of the confidence interval of an arm's mean reward.

    The arm was played `count` times, all `arms` together `rounds` times; rewards lie in 0..1
    (BanditSpec).
    """
    bound = 1 + 2 * log(arms * rounds**2 * sqrt(1 + count) / delta)
    return 0.5 * sqrt((1 + count) / count**2 * bound)


class Ucb:
    """The UCB bandit: each arm once, then the arm with the highest upper confidence bound."""

    def __init__(self, arms: int, options: BanditSpec) -> None:
        self.counts = [0] * arms
        self.means = [0.0] * arms
        self.options = options

    def pick(self) -> int:
        if 0 in self.counts:
            return self.counts.index(0)
        rounds = 1 + sum(self.counts)
        arms = len(self.counts)
        delta = self.options.delta
        bounds = [
            mean + self.options.radius * confidence_radius(count, rounds, arms, delta)
            for count, mean in zip(self.counts, self.means, strict=True)
        ]
        return bounds.index(max(bounds))

    def learn(self, arm: int, reward: float) -> None:
        self.counts[arm] += 1
        self.means[arm] += (reward - self.means[arm]) / self.counts[arm]


class Exp3:
    """The EXP3 bandit: arms at random, less likely the more reward they missed when they were
    played.
    """

    def __init__(self, arms: int, random: Random) -> None:
        self.losses = [0.0] * arms
        self.rounds = 0
        self.random = random

    def chances(self) -> list[float]:
        """Return the probability of every arm in the next round."""
        arms = len(self.losses)
        rate = sqrt(log(arms) / ((self.rounds + 1) * arms))
        weights = [exp(-rate * (loss - min(self.losses))) for loss in self.losses]
        return [weight / sum(weights) for weight in weights]

    def pick(self) -> int:
        return self.random.choices(range(len(self.losses)), self.chances())[0]

    def learn(self, arm: int, reward: float) -> None:
        self.losses[arm] += (1 - reward) / self.chances()[arm]
        self.rounds += 1


class _BanditSpecPolicy(ArmsPolicy):
    def __init__(self, options: BanditSpec) -> None:
        super().__init__(options.policies(), options.max_draft, shared=options.share == "run")
        self.options = options
        self.bandits: dict[str, Bandit] = {}
        self.time: RoundTime | None = None
        self.best_rate = 0.0

    def draft(self, drafter: "Drafter") -> None:
        self.time = RoundTime(drafter)
        super().draft(drafter)

    def pick(self, scope: str) -> int:
        if scope not in self.bandits:
            arms = len(self.policies)
            uses_ucb = self.options.algorithm == "ucb"
            self.bandits[scope] = (
                Ucb(arms, self.options) if uses_ucb else Exp3(arms, Random(f"banditspec/{scope}"))
            )
        return self.bandits[scope].pick()

    def learn(self, scope: str, arm: int, verdicts: "Sequence[Verdict]") -> None:
        reward = self._reward(fmean(len(verdict.path) for verdict in verdicts))
        if reward is not None:
            self.bandits[scope].learn(arm, reward)

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self.bandits.pop(request_id, None)

    def _reward(self, accepted: float) -> float | None:
        if self.options.reward == "length":
            return accepted / self.options.max_draft
        seconds = self.time.seconds() if self.time is not None and self.time.typical else 0.0
        if not seconds:
            return None
        rate = (1 + accepted) / seconds
        self.best_rate = max(self.best_rate, rate)
        return rate / self.best_rate
