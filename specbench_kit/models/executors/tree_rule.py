"""Rules by which trees of drafts grow: arithmetic on probabilities, which a card does without the
host.
"""

from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class BeamRule:
    """Grow a tree from its root in `levels` levels, of which each forwards at most `beams` nodes
    and gives each of them at most `branch` children, its most probable tokens.

    A node's score is its parent's plus the logarithms of `decay` and of its draft probability. The
    `budget` nodes with the highest scores so far are selected, the older one among equals. Each
    level forwards the selected nodes with the highest scores that were not forwarded yet; with
    `newest_only` only those that the level before has added.
    """

    levels: int
    beams: int
    branch: int
    budget: int
    decay: float = 1.0
    newest_only: bool = False

    @property
    def widths(self) -> list[int]:
        """Return the most nodes that each level forwards."""
        widths = []
        waiting = 1
        for _ in range(self.levels):
            width = min(self.beams, self.budget, waiting)
            widths.append(width)
            waiting = width * self.branch + (0 if self.newest_only else waiting - width)
        return widths

    @property
    def bounded(self) -> "BeamRule":
        """Return the same rule with no larger budget than the levels can add nodes, by which
        verifications are padded.
        """
        return replace(self, budget=min(self.budget, sum(self.widths) * self.branch))


@dataclass(frozen=True)
class ShapeRule:
    """Grow every tree to the same shape, whose nodes are all selected.

    `parents` are the nodes above node 1, node 2 and so on; the root is node 0. Nodes stand level by
    level, and in the order of their parents within a level. The children of a node are its most
    probable next tokens, the most probable first.
    """

    parents: tuple[int, ...]

    @property
    def levels(self) -> int:
        """Return the number of levels that are forwarded, the root's included."""
        return len(self.inner)

    @property
    def budget(self) -> int:
        """Return the number of nodes."""
        return len(self.parents)

    @cached_property
    def branch(self) -> int:
        """Return the most children of a node."""
        return max(map(self.parents.count, self.parents), default=0)

    @cached_property
    def widths(self) -> list[int]:
        """Return how many nodes each level forwards."""
        return [len(nodes) for nodes in self.inner]

    @property
    def bounded(self) -> "ShapeRule":
        """Return this rule, which has no budget."""
        return self

    @cached_property
    def inner(self) -> list[list[int]]:
        """Return the nodes that have children, level by level."""
        return [sorted({self.parents[node - 1] for node in level}) for level in self.below]

    @cached_property
    def below(self) -> list[list[int]]:
        """Return the nodes of each level below the root."""
        depths = [0]
        levels: list[list[int]] = []
        for node, parent in enumerate(self.parents, start=1):
            depths.append(depths[parent] + 1)
            if depths[node] > len(levels):
                levels.append([])
            levels[depths[node] - 1].append(node)
        return levels

    @cached_property
    def ranks(self) -> list[int]:
        """Return how many siblings stand before each node after the root."""
        return [self.parents[:index].count(parent) for index, parent in enumerate(self.parents)]


TreeRule = BeamRule | ShapeRule
