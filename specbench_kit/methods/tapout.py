"""A bandit over stop rules, none of which has to be tuned."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.arms import ArmsPolicy, Composed
from specbench_kit.methods.base import Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.verification import Verdict


@methods.register("tapout")
@dataclass(frozen=True)
class TapOut(Composed):
    """Leave each round of the batch to the stop rule whose reward may be the highest (UCB1).

    The reward is half the accepted share of `max_draft`, the most that an arm may draft, and half the accepted share
    of what was drafted. Kept for the run: each arm's rounds and mean reward.
    """

    arms: str = "threshold+svip+adaedl+entropy-change+margin"
    max_draft: int = 8
    source = "TapOut, arXiv 2511.02017"
    group = "bandit"
    grid = MappingProxyType(
        {
            "arms": ("threshold+svip+adaedl+entropy-change+margin", "fixed-k.k=1..6", "svip+fixed-k.k=2..4"),
            "max_draft": (4, 6, 8),
        }
    )

    def __post_init__(self) -> None:
        require(self.max_draft >= 1, f"tapout: max_draft must be at least 1, not {self.max_draft}")
        self.take_arms(self.arms)

    def policy(self) -> Policy:
        return _TapOutPolicy(self)


def blended(accepted: int, drafted: int, longest: int) -> float:
    """Half for how much was gained, half for how little was wasted."""
    return 0.5 * accepted / longest + (0.5 * accepted / drafted if drafted else 0.0)


class _TapOutPolicy(ArmsPolicy):
    def __init__(self, options: TapOut) -> None:
        super().__init__(options.policies(), options.max_draft, shared=True)
        self.counts, self.means = [0] * len(self.policies), [0.0] * len(self.policies)

    def pick(self, scope: str) -> int:
        if 0 in self.counts:
            return self.counts.index(0)
        rounds = sum(self.counts)
        bounds = [mean + sqrt(2 * log(rounds) / count) for count, mean in zip(self.counts, self.means, strict=True)]
        return bounds.index(max(bounds))

    def learn(self, scope: str, arm: int, verdicts: "Sequence[Verdict]") -> None:
        reward = fmean(blended(len(verdict.path), verdict.draft.tree.drafted, self.longest) for verdict in verdicts)
        self.counts[arm] += 1
        self.means[arm] += (reward - self.means[arm]) / self.counts[arm]
