"""Trees that grow level by level where the draft model is most certain."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, repeat
from math import exp, inf, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter


@dataclass
class GrowingTree:
    """The part of one request's tree below `root`, of which the `budget` nodes with the highest
    scores are selected.

    A node's score is its parent's plus the logarithms of `decay` and of its draft probability. It
    is never above its parent's, so the selected nodes always form a tree. Nodes that are no longer
    selected stay in `draft.tree`, where their KV may be, but do not grow.
    """

    draft: "Draft"
    budget: int
    decay: float
    root: int = 0
    scores: dict[int, float] = field(default_factory=dict)
    selected: list[int] = field(default_factory=list)
    forwarded: dict[int, "tuple[DraftForward, int]"] = field(default_factory=dict)
    """The forward and the row that predict the next token of each forwarded node."""

    def __post_init__(self) -> None:
        self.scores.setdefault(self.root, 0.0)
        self._loss = log(self.decay)

    def frontier(self, limit: int) -> list[int]:
        """Return the highest-scoring selected nodes that were not yet forwarded, at most
        `limit`.
        """
        return self.best(
            [node for node in (self.root, *self.selected) if node not in self.forwarded], limit
        )

    @property
    def leaves(self) -> list[int]:
        """Return the selected nodes without a selected child; the root if no node is selected."""
        parents = {self.draft.tree.parents[node] for node in self.selected}
        return [node for node in (self.root, *self.selected) if node not in parents]

    def best(self, nodes: Sequence[int], limit: int) -> list[int]:
        """Return the highest-scoring of some nodes, at most `limit`, parents before children."""
        if len(nodes) <= limit:
            return sorted(nodes)
        return sorted(sorted(nodes, key=self.scores.__getitem__, reverse=True)[:limit])

    def add_children(
        self, nodes: Sequence[int], forward: "DraftForward", first_row: int, branch: int, room: int
    ) -> bool:
        """Add the children of just forwarded nodes that score above a selected node; return True if
        there are any.

        The nodes have the rows from `first_row` on in `forward`; each gets at most `branch`
        children, all together at most `room`.
        """
        self.record_forward(nodes, forward, first_row)
        scores = self.scores
        loss = self._loss
        bases = [scores[node] + loss for node in nodes]
        floor = (
            min(map(scores.__getitem__, self.selected))
            if len(self.selected) >= self.budget
            else -inf
        )
        rows = range(first_row, first_row + len(nodes))
        candidates = forward.likeliest(rows, bases, branch, min(self.budget, room), floor)
        if not candidates:
            return False
        values, indices, tokens = zip(*candidates, strict=True)
        parents = [nodes[index] for index in indices]
        origins = [rows[index] for index in indices]
        children = self.draft.tree.extend(tokens, parents, forward, origins)
        scores.update(zip(children, values, strict=True))
        # Among equal scores the older node stays selected, so that no node outlives its parent.
        self.selected = self.best([*self.selected, *children], self.budget)
        return True

    def expected(self, nodes: Sequence[int]) -> float:
        """Return the expected number of accepted tokens among some nodes, by their scores."""
        return sum(exp(self.scores[node]) for node in nodes)

    def below_root(self, draft: "Draft", budget: int, decay: float) -> "GrowingTree":
        """Return this tree renumbered for a draft whose tree begins at its root
        (`TokenTree.below`).

        It grows on with another budget and decay, and the best of all its nodes are selected anew.
        """
        renumbered = {node: new for new, node in enumerate(self.draft.tree.below(self.root))}
        tree = GrowingTree(
            draft,
            budget,
            decay,
            scores={renumbered[node]: score for node, score in self.scores.items()},
            forwarded={renumbered[node]: source for node, source in self.forwarded.items()},
        )
        tree.selected = tree.best([node for node in tree.scores if node != tree.root], budget)
        return tree

    def record_forward(self, nodes: Sequence[int], forward: "DraftForward", first_row: int) -> None:
        """Record the rows of a forward that predict the next tokens of some nodes."""
        self.forwarded.update(zip(nodes, zip(repeat(forward), count(first_row)), strict=False))

    def add(self, parent: int, token: int, score: float) -> int:
        """Append a child of a forwarded node and return its index."""
        node = self.draft.tree.add(token, parent, *self.forwarded[parent])
        self.scores[node] = score
        return node


Frontier = list[tuple[GrowingTree, list[int]]]
"""Growing trees, each with the nodes that are forwarded next."""


def expected_of(trees: Iterable[GrowingTree], draft: "Draft", nodes: Sequence[int]) -> float:
    """Return the expected number of accepted tokens among a draft's nodes, by the scores of its
    growing tree.
    """
    return next(tree for tree in trees if tree.draft is draft).expected(nodes)


def expand(drafter: "Drafter", frontier: Frontier) -> "tuple[DraftForward, Iterator[int]]":
    """Forward the nodes of all trees in one batch; return the forward and the first row of each
    tree.

    The rows are followed by their total number.
    """
    forward = drafter.expand([(tree.draft, nodes) for tree, nodes in frontier])
    return forward, accumulate([len(nodes) for _, nodes in frontier], initial=0)


def grow(
    drafter: "Drafter", trees: Sequence[GrowingTree], beams: int, branch: int
) -> list[GrowingTree]:
    """Grow every tree that has room by one level and return the trees that gained a node.

    At most `beams` nodes of a tree are forwarded, and each gets at most `branch` children.
    """
    frontier = []
    rooms = []
    for tree in trees:
        if (room := drafter.room(tree.draft)) > 0 and (nodes := tree.frontier(beams)):
            frontier.append((tree, nodes))
            rooms.append(room)
    if not frontier:
        return []
    forward, first_rows = expand(drafter, frontier)
    grown = []
    for (tree, nodes), first_row, room in zip(frontier, first_rows, rooms, strict=False):
        if tree.add_children(nodes, forward, first_row, branch, room):
            grown.append(tree)
    return grown
