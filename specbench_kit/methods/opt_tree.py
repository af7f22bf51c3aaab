"""Trees that grow until another level is no longer expected to add enough accepted tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
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
    1. Growth ends with the level that adds `gain` expected tokens or fewer or, with `late=true`, one level later, as in
    the authors' code. No state is kept between rounds.
    """

    nodes: int = 60
    gain: float = 0.5
    max_depth: int = 10
    late: bool = False
    source = "OPT-Tree, arXiv 2406.17276"
    reported_result = "up to 3.2 times plain decoding"
    group = "tree"
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        self.require_at_least(1, "nodes", "max_depth")
        require(self.gain >= 0, f"opt-tree: gain must not be negative, but is {self.gain}")

    def policy(self) -> Policy:
        return _OptTreePolicy(self)


class RatedTree:
    """A growing tree with the expected accepted tokens that its last two levels added."""

    def __init__(self, tree: GrowingTree) -> None:
        self.tree = tree
        self.expected, self.gain, self.previous_gain = 0.0, inf, inf

    def rate_level(self) -> None:
        """Update the gains after a level was added."""
        before, self.expected = self.expected, self.tree.expected(self.tree.selected)
        self.previous_gain, self.gain = self.gain, self.expected - before


class _OptTreePolicy(Policy):
    def __init__(self, options: OptTree) -> None:
        self.options = options
        self.trees: list[GrowingTree] = []

    def draft(self, drafter: "Drafter") -> None:
        options = self.options
        live = [RatedTree(GrowingTree(draft, options.nodes, decay=1.0)) for draft in drafter.drafts]
        self.trees = [rated.tree for rated in live]
        for _ in range(options.max_depth):
            grown = grow(drafter, [rated.tree for rated in live], options.nodes, options.nodes)
            live = [rated for rated in live if rated.tree in grown]
            for rated in live:
                rated.rate_level()
            live = [rated for rated in live if (rated.previous_gain if options.late else rated.gain) > options.gain]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [tree.selected for tree in self.trees]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_of(self.trees, draft, nodes)
