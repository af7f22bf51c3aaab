"""Trees that grow as long as another level is expected to bring enough tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Method, Policy, methods, require
from specbench_kit.methods.growth import Growth, expected_of, grow

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("opt-tree")
@dataclass(frozen=True)
class OptTree(Method):
    """Draft the tree of `nodes` tokens that is expected to have the most accepted, level by level.

    The expectation is the sum of the nodes' cumulative draft probabilities, right only at draft temperature 1. A tree
    is finished with the level that raises it by no more than `gain`, or one level later with `late=true`, as the
    authors' code has it. It keeps nothing from round to round.
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
        for name in ("nodes", "max_depth"):
            require(getattr(self, name) >= 1, f"opt-tree: {name} must be at least 1, not {getattr(self, name)}")
        require(self.gain >= 0, f"opt-tree: gain must not be negative, but is {self.gain}")

    def policy(self) -> Policy:
        return _OptTreePolicy(self)


class Rising:
    """A tree that grows, and what its last levels brought."""

    def __init__(self, growth: Growth) -> None:
        self.growth = growth
        self.expected, self.rise, self.rise_before = 0.0, inf, inf

    def note(self) -> None:
        """A level was drafted."""
        before, self.expected = self.expected, self.growth.expected(self.growth.kept)
        self.rise_before, self.rise = self.rise, self.expected - before


class _OptTreePolicy(Policy):
    def __init__(self, options: OptTree) -> None:
        self.options = options
        self.growths: list[Growth] = []

    def draft(self, drafter: "Drafter") -> None:
        live = [Rising(Growth(draft, self.options.nodes, decay=1.0)) for draft in drafter.drafts]
        self.growths = [tree.growth for tree in live]
        for _ in range(self.options.max_depth):
            grown = grow(drafter, [tree.growth for tree in live], self.options.nodes, self.options.nodes)
            live = [tree for tree in live if tree.growth in grown]
            for tree in live:
                tree.note()
            live = [tree for tree in live if self._is_worth_it(tree)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [growth.kept for growth in self.growths]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_of(self.growths, draft, nodes)

    def _is_worth_it(self, tree: Rising) -> bool:
        return (tree.rise_before if self.options.late else tree.rise) > self.options.gain
