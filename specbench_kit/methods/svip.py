"""Stop where the draft model's entropy says that the next token would be a guess."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("svip")
@dataclass(frozen=True)
class Svip(Method):
    """Stop after the first token that was drawn where sqrt(factor x entropy) exceeds the threshold; it is sent.

    The root bounds how likely the target is to reject; entropy is in nats. It keeps nothing from round to round.
    """

    threshold: float = 0.3
    factor: float = 0.15
    max_draft: int = 40
    source = "SVIP, arXiv 2411.18462"
    reported_result = "up to 17% over a static length at 8,000 tokens, 22% in long reasoning"
    group = "stop-rule"
    grid = MappingProxyType({"threshold": (0.2, 0.3, 0.4, 0.5, 0.6), "max_draft": (3, 5, 8)})

    def __post_init__(self) -> None:
        require(self.threshold >= 0, f"svip: threshold must not be negative, but is {self.threshold}")
        require(self.factor > 0, f"svip: factor must be above 0, not {self.factor}")
        require(self.max_draft >= 1, f"svip: max_draft must be at least 1, not {self.max_draft}")

    def policy(self) -> Policy:
        return _SvipPolicy(self)


@dataclass
class _SvipPolicy(Policy):
    options: Svip

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.options.max_draft):
            live = [draft for draft in drafter.extend(live) if self._is_sure(draft)]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(max(0.0, 1 - self._rejection(draft, node)) for node in nodes)

    def _is_sure(self, draft: "Draft") -> bool:
        return self._rejection(draft, draft.tree.last) <= self.options.threshold

    def _rejection(self, draft: "Draft", node: int) -> float:
        """The bound on its chance."""
        return sqrt(self.options.factor * draft.tree.distribution_stats(node).entropy)
