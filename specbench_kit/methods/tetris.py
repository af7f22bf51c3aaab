"""Draft more than can be verified, and verify those tokens of the whole batch that are likeliest to be accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Capability, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("tetris")
@dataclass(frozen=True)
class Tetris(Method):
    """Draft k + `extra` tokens per request, and verify the k per request of highest cumulative draft probability.

    Some requests get more of the batch's places and others fewer. Below `min_batch` requests: k tokens each. It keeps
    nothing from round to round.
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
        for name, least in (("k", 1), ("extra", 0), ("min_batch", 1)):
            require(getattr(self, name) >= least, f"tetris: {name} must be at least {least}, not {getattr(self, name)}")

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
        places = [
            (-draft.tree.path_probability(node), request, node)
            for request, draft in enumerate(drafts)
            for node in range(1, len(draft.tree))
        ]
        # A token is never likelier than the ones before it, and of equals the earlier goes first: these are prefixes.
        taken = sorted(places)[: self.options.k * len(drafts)]
        return [sorted(node for _, request, node in taken if request == one) for one in range(len(drafts))]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(map(draft.tree.probability, nodes))
