"""Stop where the draft model is suddenly less certain than at the token before."""

from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Chains, Method, Policy, StopRule, methods, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("entropy-change")
@dataclass(frozen=True)
class EntropyChange(Method):
    """Stop after the first token at which the square root of the entropy rises by more than the
    threshold.

    The rise is from the token before it in the same draft, so the first token never stops. Entropy
    is in nats. The token at which it stops is sent. No state is kept between rounds.
    """

    threshold: float = 0.2
    max_draft: int = 20
    source = "an arm of TapOut, arXiv 2511.02017; threshold ours"
    group = "stop-rule"
    grid = MappingProxyType({"threshold": (0.1, 0.2, 0.4, 0.6, 0.8, 1.0), "max_draft": (3, 5, 8)})

    def __post_init__(self) -> None:
        require(
            self.threshold >= 0,
            f"entropy-change: threshold must not be negative, but is {self.threshold}",
        )
        self.require_at_least(1, "max_draft")

    def policy(self) -> Policy:
        return _EntropyChangePolicy(self)


@dataclass
class _EntropyChangePolicy(Policy):
    options: EntropyChange

    @property
    def stop_rule(self) -> StopRule:
        return StopRule(self.options.max_draft, self._stops)

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.options.max_draft):
            live = [draft for draft in drafter.extend(live) if self._is_steady(draft)]

    def _stops(self, chains: Chains) -> "NDArray[np.bool_]":
        roots = chains.entropy**0.5
        rises = roots - roots[:, [0, *range(roots.shape[1] - 1)]]
        return rises > self.options.threshold

    def _is_steady(self, draft: "Draft") -> bool:
        tree = draft.tree
        last = draft.tree.last
        before, newest = (
            sqrt(tree.distribution_stats(node).entropy) for node in (max(last - 1, 1), last)
        )
        return newest - before <= self.options.threshold
