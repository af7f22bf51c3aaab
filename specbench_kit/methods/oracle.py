"""The perfect stopping criterion, as an upper bound."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Method, Policy, StopRule, methods

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("oracle")
@dataclass(frozen=True)
class Oracle(Method):
    """Stop at the first token that the target will reject; that token is drafted but not sent.

    It reads the target's answer, so it cannot be deployed. It is an upper bound for all rules that decide after each
    drafted token.
    """

    max_draft: int = 8
    required_capability = Capability.TOKENS
    source = "upper bound"
    group = "bounds"
    proposal = "top"
    needs_reference = True

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")

    def policy(self) -> Policy:
        return _OraclePolicy(self.max_draft)


@dataclass
class _OraclePolicy(Policy):
    max_draft: int

    @property
    def stop_rule(self) -> StopRule:
        return StopRule(self.max_draft, lambda chains: ~chains.right, sends_last=False)

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.max_draft):
            live = [draft for draft in drafter.extend(live) if _agrees(draft, draft.tree.last)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [[node for node in range(1, len(draft.tree)) if _agrees(draft, node)] for draft in drafts]


def _agrees(draft: "Draft", node: int) -> bool:
    """Return True if the target's answer has the node's token at its position."""
    position = draft.tree.depth(node) - 1
    return position < len(draft.reference) and draft.tree.tokens[node] == draft.reference[position]
