"""Chains of constant length whose tokens are verified as one block."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.methods.base import Capability, Environment, Group, Method, Policy, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


@methods.register("block-verification")
@dataclass(frozen=True)
class BlockVerification(Method):
    """Draft exactly `k` tokens, and verify them as one block, which accepts at least as many as one
    by one.

    It differs from `fixed-k` under sampling alone. Only a local target verifies so: servers verify
    token by token.
    """

    k: int = 8
    required_capability = Capability.TOKENS
    source = "block verification, Sun et al. 2024, arXiv 2403.10444"
    reported_result = "5 to 8% faster than verification token by token"
    group: ClassVar[Group] = "static"
    verification = "block"
    draft_limit = "k"

    def __post_init__(self) -> None:
        self.require_at_least(1, "k")

    def prepare(self, environment: Environment) -> Method:
        environment.require_local_sampling(self.display_name)
        return self

    def policy(self) -> Policy:
        return _BlockPolicy(self.k)


@dataclass
class _BlockPolicy(Policy):
    k: int

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            draft.tree.verification = "block"
        for _ in range(self.k):
            drafter.extend(drafter.drafts)
