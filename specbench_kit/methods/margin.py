"""Stop where the draft model can hardly tell its two likeliest tokens apart."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Method, Policy, StopRule, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter

MARGIN = 2
"""Its place among the statistics of `Chains`."""


@methods.register("margin")
@dataclass(frozen=True)
class Margin(Method):
    """Stop after the first token that was drawn where the likeliest token led the second by less than the threshold.

    That token is sent. The lead is one of probabilities. It keeps nothing from round to round.
    """

    threshold: float = 0.2
    max_draft: int = 20
    source = "an arm of TapOut, arXiv 2511.02017; threshold ours"
    group = "stop-rule"
    grid = MappingProxyType({"threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "max_draft": (3, 5, 8)})

    def __post_init__(self) -> None:
        require(0 <= self.threshold <= 1, f"margin: threshold must lie in 0..1, not {self.threshold}")
        require(self.max_draft >= 1, f"margin: max_draft must be at least 1, not {self.max_draft}")

    def policy(self) -> Policy:
        return _MarginPolicy(self)


@dataclass
class _MarginPolicy(Policy):
    options: Margin

    @property
    def stop_rule(self) -> StopRule:
        threshold = self.options.threshold
        return StopRule(self.options.max_draft, lambda chains: chains.statistics[..., MARGIN] < threshold)

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.options.max_draft):
            live = [draft for draft in drafter.extend(live) if self._is_clear(draft)]

    def _is_clear(self, draft: "Draft") -> bool:
        return draft.tree.distribution_stats(draft.tree.last).margin >= self.options.threshold
