"""Stop where the draft model's two most probable tokens are almost equally likely."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Method, Policy, StopRule, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("margin")
@dataclass(frozen=True)
class Margin(Method):
    """Stop after the first token drawn where the most probable token leads the second by less than
    the threshold.

    The lead is a difference of probabilities, 0..1. The token at which it stops is sent. No state
    is kept between rounds.
    """

    threshold: float = 0.2
    max_draft: int = 20
    source = "an arm of TapOut, arXiv 2511.02017; threshold ours"
    group = "stop-rule"
    grid = MappingProxyType({"threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "max_draft": (3, 5, 8)})

    def __post_init__(self) -> None:
        self.require_share("threshold")
        self.require_at_least(1, "max_draft")

    def policy(self) -> Policy:
        return _MarginPolicy(self)


@dataclass
class _MarginPolicy(Policy):
    options: Margin

    @property
    def stop_rule(self) -> StopRule:
        threshold = self.options.threshold
        return StopRule(self.options.max_draft, lambda chains: chains.margin < threshold)

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.options.max_draft):
            live = [draft for draft in drafter.extend(live) if self._is_clear(draft)]

    def _is_clear(self, draft: "Draft") -> bool:
        return draft.tree.distribution_stats(draft.tree.last).margin >= self.options.threshold
