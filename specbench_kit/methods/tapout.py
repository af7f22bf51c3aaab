"""A bandit that chooses among stopping criteria, so that none of them has to be tuned."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.arms import ArmsMethod, ArmsPolicy
from specbench_kit.methods.base import Policy, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.verification import Verdict


@methods.register("tapout")
@dataclass(frozen=True)
class TapOut(ArmsMethod):
    """Choose the stopping criterion that drafts each round of the batch by its upper confidence
    bound (UCB1).

    Arms draft at most `max_draft` tokens. The reward, 0..1, is half the accepted tokens over
    `max_draft` plus half the accepted tokens over the drafted ones. Each arm's rounds and mean
    reward are kept for the run.
    """

    arms: str = "threshold+svip+adaedl+entropy-change+margin"
    max_draft: int = 8
    source = (
        "TapOut, arXiv 2511.02017 (max_draft and the thresholds of the arms are ours: not verified)"
    )
    group = "bandit"
    is_folded = True
    grid = MappingProxyType(
        {
            "arms": (
                "threshold+svip+adaedl+entropy-change+margin",
                "fixed-k.k=1..6",
                "svip+fixed-k.k=2..4",
            ),
            "max_draft": (4, 6, 8),
        }
    )

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        self.take_arms(self.arms)

    def policy(self) -> Policy:
        return _TapOutPolicy(self)


def blended(accepted: int, drafted: int, longest: int) -> float:
    """Return a reward in 0..1: half of accepted over `longest` tokens plus half of accepted over
    drafted tokens.
    """
    return 0.5 * accepted / longest + (0.5 * accepted / drafted if drafted else 0.0)


class _TapOutPolicy(ArmsPolicy):
    def __init__(self, options: TapOut) -> None:
        super().__init__(options.policies(), options.max_draft, shared=True)
        self.counts, self.means = [0] * len(self.policies), [0.0] * len(self.policies)

    def pick(self, scope: str) -> int:
        if 0 in self.counts:
            return self.counts.index(0)
        rounds = sum(self.counts)
        bounds = [
            mean + sqrt(2 * log(rounds) / count)
            for count, mean in zip(self.counts, self.means, strict=True)
        ]
        return bounds.index(max(bounds))

    def learn(self, scope: str, arm: int, verdicts: "Sequence[Verdict]") -> None:
        reward = fmean(
            blended(len(verdict.path), verdict.draft.tree.drafted, self.longest)
            for verdict in verdicts
        )
        self.counts[arm] += 1
        self.means[arm] += (reward - self.means[arm]) / self.counts[arm]
