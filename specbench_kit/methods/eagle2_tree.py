"""EAGLE-2's dynamic draft trees: they grow level by level, and their likeliest nodes are verified."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.methods.base import Capability, Group, Method, Policy, methods, require
from specbench_kit.methods.growth import Frontier, GrowingTree, expand, expected_of

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("eagle2-tree")
@dataclass(frozen=True)
class Eagle2Tree(Method):
    """Grow `top_k` children of each level's `top_k` likeliest nodes, then verify the `total` - 1 likeliest nodes.

    A node's likelihood is the product of the draft probabilities from the root to it. `depth` levels follow the first
    one. EAGLE-2 itself runs with `drafter=head`; any drafter that gives trees will do.
    """

    total: int = 60
    depth: int = 5
    top_k: int = 10
    group: ClassVar[Group] = "tree"
    source = "EAGLE-2, Li et al. 2024"
    reported_result = "3.05 to 4.26 times plain decoding, 20 to 40% over EAGLE"
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        for name, least in (("total", 2), ("depth", 0), ("top_k", 1)):
            require(getattr(self, name) >= least, f"eagle2-tree: {name} must be at least {least}")

    def policy(self) -> Policy:
        return _Eagle2Policy(self)


class _Eagle2Policy(Policy):
    def __init__(self, options: Eagle2Tree) -> None:
        self._options = options
        self._trees: list[GrowingTree] = []

    def draft(self, drafter: "Drafter") -> None:
        self._trees = [GrowingTree(draft, self._options.total - 1, decay=1.0) for draft in drafter.drafts]
        frontier: Frontier = [(tree, [tree.root]) for tree in self._trees]
        for _ in range(self._options.depth + 1):
            frontier = self._next_level(drafter, frontier)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [tree.selected for tree in self._trees]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_of(self._trees, draft, nodes)

    def _next_level(self, drafter: "Drafter", frontier: Frontier) -> Frontier:
        """Forward one level and return the likeliest of the nodes that it adds.

        A node that is not among the likeliest `total` - 1 so far never will be, nor any node below it: it is dropped.
        """
        frontier = [(tree, nodes) for tree, nodes in frontier if nodes and drafter.room(tree.draft) > 0]
        if not frontier:
            return []
        forward, first_rows = expand(drafter, frontier)
        level: Frontier = []
        for (tree, nodes), first in zip(frontier, first_rows, strict=False):
            newest = tree.draft.tree.last
            tree.add_children(nodes, forward, first, self._options.top_k, drafter.room(tree.draft))
            level.append((tree, tree.best([n for n in tree.selected if n > newest], self._options.top_k)))
        return level
