"""Draft more tokens than are verified, and verify those of the whole batch that are most probable
to be accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Capability, Method, Policy, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("tetris")
@dataclass(frozen=True)
class Tetris(Method):
    """Draft `k` + `extra` tokens per request, then verify the batch's `k` per request with the
    highest probability.

    A token's probability is the product of the draft probabilities down to it, so some requests
    have more tokens verified than others. Batches of fewer than `min_batch` requests draft and
    verify `k` tokens each. No state is kept between rounds.
    """

    k: int = 3
    extra: int = 1
    min_batch: int = 2
    source = "TETRIS, arXiv 2502.15197"
    group = "latency-aware"
    grid = MappingProxyType({"k": (1, 2, 3, 4, 5, 6), "extra": (1, 2, 3)})
    required_capability = Capability.PROBABILITIES
    proposal = "top"  # which tokens are verified depends on the tokens themselves

    def __post_init__(self) -> None:
        self.require_at_least(1, "k", "min_batch")
        self.require_at_least(0, "extra")

    def policy(self) -> Policy:
        return _TetrisPolicy(self)


@dataclass
class _TetrisPolicy(Policy):
    options: Tetris

    def draft(self, drafter: "Drafter") -> None:
        crowded = len(drafter.drafts) >= self.options.min_batch
        for _ in range(self.options.k + (self.options.extra if crowded else 0)):
            drafter.extend(drafter.drafts)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        candidates = [
            (-draft.tree.path_probability(node), request, node)
            for request, draft in enumerate(drafts)
            for node in range(1, len(draft.tree))
        ]
        # A token is never likelier than those before it, and among equals the earlier comes first:
        # these are prefixes.
        chosen = sorted(candidates)[: self.options.k * len(drafts)]
        return [
            sorted(node for _, owner, node in chosen if owner == request)
            for request in range(len(drafts))
        ]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(map(draft.tree.probability, nodes))
