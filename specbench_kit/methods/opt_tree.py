"""Trees that grow until another level is no longer expected to add enough accepted tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Method, Policy, methods, require
from specbench_kit.methods.growth import GrowingTree, expected_of, grow

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("opt-tree")
@dataclass(frozen=True)
class OptTree(Method):
    """Draft the tree of `nodes` tokens with the most expected accepted tokens, level by level.

    The expected number is the sum of the nodes' cumulative draft probabilities, which holds only at draft temperature
    1. Growth ends with the level that adds `gain` expected tokens or fewer, or with level `max_depth` - 1: as in the
    authors' code, which forwards once more before it knows, `max_depth` counts a level that is not part of the tree. No
    state is kept between rounds.
    """

    nodes: int = 50
    gain: float = 0.5
    max_depth: int = 10
    source = "OPT-Tree, arXiv 2406.17276"
    reported_result = "up to 3.2 times autoregressive decoding"
    group = "tree"
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        self.require_at_least(1, "nodes")
        self.require_at_least(2, "max_depth")
        require(self.gain >= 0, f"opt-tree: gain must not be negative, but is {self.gain}")

    def policy(self) -> Policy:
        return _OptTreePolicy(self)


@dataclass
class _RatedTree:
    """A growing tree with its expected number of accepted tokens."""

    tree: GrowingTree
    expected: float = 0.0

    def rate_level(self) -> float:
        """Return the expected accepted tokens that the newest level added."""
        before, self.expected = self.expected, self.tree.expected(self.tree.selected)
        return self.expected - before


class _OptTreePolicy(Policy):
    def __init__(self, options: OptTree) -> None:
        self.options = options
        self.trees: list[GrowingTree] = []

    def draft(self, drafter: "Drafter") -> None:
        options = self.options
        live = [
            _RatedTree(GrowingTree(draft, options.nodes, decay=1.0)) for draft in drafter.drafts
        ]
        self.trees = [rated.tree for rated in live]
        for _ in range(options.max_depth - 1):
            grown = grow(drafter, [rated.tree for rated in live], options.nodes, options.nodes)
            live = [
                rated for rated in live if rated.tree in grown and rated.rate_level() > options.gain
            ]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [tree.selected for tree in self.trees]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_of(self.trees, draft, nodes)
