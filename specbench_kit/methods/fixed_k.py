"""Chains of constant length."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from specbench_kit.methods.base import Capability, Group, Method, Policy, StopRule, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


@methods.register("fixed-k")
@dataclass(frozen=True)
class FixedK(Method):
    """Draft exactly `k` tokens, then verify them.

    `proposal=top` takes the most probable token at every position instead of drawing it: the control for methods that
    do so because they decide by the tokens themselves. Both are the same without sampling.
    """

    k: int = 4
    proposal: Literal["sample", "top"] = field(default="sample", kw_only=True)  # type: ignore[misc]
    required_capability = Capability.TOKENS
    source = "Leviathan et al. 2023"
    reported_result = "2 to 3 times autoregressive decoding (T5-XXL)"
    group: ClassVar[Group] = "static"
    grid = MappingProxyType({"k": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)})
    draft_limit = "k"

    def __post_init__(self) -> None:
        self.require_at_least(1, "k")

    def policy(self) -> Policy:
        return _FixedKPolicy(self.k)


@dataclass
class _FixedKPolicy(Policy):
    k: int

    @property
    def stop_rule(self) -> StopRule:
        return StopRule(self.k)

    def draft(self, drafter: "Drafter") -> None:
        for _ in range(self.k):
            drafter.extend(drafter.drafts)
