"""Trees that grow level by level and are verified as far as they are likely: EAGLE-2's dynamic draft trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.methods.base import Capability, Group, Method, Policy, methods, require
from specbench_kit.methods.growth import Frontier, Growth, expand, expected_of

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("eagle2-tree")
@dataclass(frozen=True)
class Eagle2Tree(Method):
    """Grow `top_k` children of each level's `top_k` likeliest nodes, then verify the `total` - 1 likeliest of all.

    There are `depth` levels after the first, and a node counts with the probability from the root on.
    With `drafter=head` it is EAGLE's; any drafter that gives trees will do.
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
        self._growths: list[Growth] = []

    def draft(self, drafter: "Drafter") -> None:
        self._growths = [Growth(draft, self._options.total - 1, decay=1.0) for draft in drafter.drafts]
        frontier: Frontier = [(growth, [growth.root]) for growth in self._growths]
        for _ in range(self._options.depth + 1):
            frontier = self._next_level(drafter, frontier)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [growth.kept for growth in self._growths]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_of(self._growths, draft, nodes)

    def _next_level(self, drafter: "Drafter", frontier: Frontier) -> Frontier:
        """The likeliest of the nodes that a level's forward has added.

        What falls out of the likeliest `total` - 1 of all so far cannot come back, nor can anything below it.
        """
        frontier = [(growth, nodes) for growth, nodes in frontier if nodes and drafter.room(growth.draft) > 0]
        if not frontier:
            return []
        forward, first_rows = expand(drafter, frontier)
        level: Frontier = []
        for (growth, nodes), first in zip(frontier, first_rows, strict=False):
            newest = growth.draft.tree.last
            growth.take(nodes, forward, first, self._options.top_k, drafter.room(growth.draft))
            level.append((growth, growth.best([n for n in growth.kept if n > newest], self._options.top_k)))
        return level
