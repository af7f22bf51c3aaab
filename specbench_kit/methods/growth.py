"""Trees that grow where the draft model is surest, level by level."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from math import inf, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.tree import DraftForward


@dataclass
class Growth:
    """The part of one request's tree below `root`, of which at most `budget` nodes are kept: those that score highest.

    A node's score is its parent's, plus the logarithm of `decay` and of its draft probability; it is never above its
    parent's, so what is kept is always a tree. Nodes that fell out stay in `draft.tree`, where their KV may be, but
    are neither grown nor kept.
    """

    draft: "Draft"
    budget: int
    decay: float
    root: int = 0
    scores: dict[int, float] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    forwarded: dict[int, "tuple[DraftForward, int]"] = field(default_factory=dict)
    """Where each forwarded node's next token is predicted."""

    def __post_init__(self) -> None:
        self.scores.setdefault(self.root, 0.0)

    @property
    def waiting(self) -> list[int]:
        """The kept nodes that were not yet forwarded."""
        return [node for node in (self.root, *self.kept) if node not in self.forwarded]

    @property
    def leaves(self) -> list[int]:
        """The kept nodes without a kept child; the root where nothing is kept."""
        parents = {self.draft.tree.parents[node] for node in self.kept}
        return [node for node in (self.root, *self.kept) if node not in parents]

    def best(self, nodes: Sequence[int], most: int) -> list[int]:
        """The highest-scoring of some nodes, parents before children."""
        return sorted(sorted(nodes, key=self.scores.__getitem__, reverse=True)[:most])

    def take(self, nodes: Sequence[int], forward: "DraftForward", first_row: int, branch: int, room: int) -> bool:
        """Take in those children of just forwarded nodes that beat what is kept; returns whether any did."""
        self.note(nodes, forward, first_row)
        scores, add, rows = self.scores, self.draft.tree.add, range(first_row, first_row + len(nodes))
        loss = log(self.decay)
        bases = [scores[node] + loss for node in nodes]
        floor = min(map(scores.__getitem__, self.kept)) if len(self.kept) >= self.budget else -inf
        newcomers = []
        for score, row, token in forward.likeliest(rows, bases, branch, min(self.budget, room)):
            if score > floor:
                newcomers.append(node := add(token, nodes[row], forward, rows[row]))
                scores[node] = score
        # Of equals the older stays, so that no node outlives its parent.
        self.kept = self.best([*self.kept, *newcomers], self.budget)
        return bool(newcomers)

    def below_root(self, draft: "Draft") -> "Growth":
        """The same growth in a tree that begins at its root (`TokenTree.below`)."""
        place = {node: new for new, node in enumerate(self.draft.tree.below(self.root))}
        return Growth(
            draft,
            self.budget,
            self.decay,
            scores={place[node]: score for node, score in self.scores.items()},
            kept=[place[node] for node in self.kept],
            forwarded={place[node]: source for node, source in self.forwarded.items()},
        )

    def note(self, nodes: Sequence[int], forward: "DraftForward", first_row: int) -> None:
        """Remember where forwarded nodes' next tokens are predicted."""
        self.forwarded.update(zip(nodes, zip(repeat(forward), count(first_row)), strict=False))

    def add(self, parent: int, token: int, score: float) -> int:
        """Append a child of a forwarded node."""
        node = self.draft.tree.add(token, parent, *self.forwarded[parent])
        self.scores[node] = score
        return node


Frontier = list[tuple[Growth, list[int]]]


def expand(drafter: "Drafter", frontier: Frontier) -> "tuple[DraftForward, list[int]]":
    """One batched draft forward of every tree's nodes; the second part is each tree's first row."""
    forward = drafter.expand([(growth.draft, nodes) for growth, nodes in frontier])
    counts = [len(nodes) for _, nodes in frontier]
    return forward, [sum(counts[:place]) for place in range(len(counts))]


def grow(drafter: "Drafter", growths: Sequence[Growth], beams: int, branch: int) -> list[Growth]:
    """One level of every tree that has room; returns the trees that gained a node."""
    frontier = [(growth, growth.best(growth.waiting, beams)) for growth in growths if drafter.room(growth.draft) > 0]
    frontier = [(growth, nodes) for growth, nodes in frontier if nodes]
    if not frontier:
        return []
    forward, first_rows = expand(drafter, frontier)
    return [
        growth
        for (growth, nodes), first in zip(frontier, first_rows, strict=True)
        if growth.take(nodes, forward, first, branch, drafter.room(growth.draft))
    ]
