"""Trees that grow where the draft model is surest, level by level."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, repeat
from math import exp, inf, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter


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
        self._loss = log(self.decay)

    def waiting(self, most: int) -> list[int]:
        """The highest-scoring of the kept nodes that were not yet forwarded."""
        return self.best([node for node in (self.root, *self.kept) if node not in self.forwarded], most)

    @property
    def leaves(self) -> list[int]:
        """The kept nodes without a kept child; the root where nothing is kept."""
        parents = {self.draft.tree.parents[node] for node in self.kept}
        return [node for node in (self.root, *self.kept) if node not in parents]

    def best(self, nodes: Sequence[int], most: int) -> list[int]:
        """The highest-scoring of some nodes, parents before children."""
        if len(nodes) <= most:
            return sorted(nodes)
        return sorted(sorted(nodes, key=self.scores.__getitem__, reverse=True)[:most])

    def take(self, nodes: Sequence[int], forward: "DraftForward", first_row: int, branch: int, room: int) -> bool:
        """Take in those children of just forwarded nodes that beat what is kept; returns whether any did."""
        self.note(nodes, forward, first_row)
        scores, loss = self.scores, self._loss
        bases = [scores[node] + loss for node in nodes]
        floor = min(map(scores.__getitem__, self.kept)) if len(self.kept) >= self.budget else -inf
        rows = range(first_row, first_row + len(nodes))
        found = forward.likeliest(rows, bases, branch, min(self.budget, room), floor)
        if not found:
            return False
        values, places, tokens = zip(*found, strict=True)
        parents, origins = [nodes[place] for place in places], [rows[place] for place in places]
        newcomers = self.draft.tree.extend(tokens, parents, forward, origins)
        scores.update(zip(newcomers, values, strict=True))
        # Of equals the older stays, so that no node outlives its parent.
        self.kept = self.best([*self.kept, *newcomers], self.budget)
        return True

    def expected(self, nodes: Sequence[int]) -> float:
        """How many of some nodes are accepted at a mean, by their scores."""
        return sum(exp(self.scores[node]) for node in nodes)

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


def expected_of(growths: Iterable[Growth], draft: "Draft", nodes: Sequence[int]) -> float:
    """How many of a draft's nodes are accepted at a mean, by the scores of its growth."""
    return next(growth for growth in growths if growth.draft is draft).expected(nodes)


def expand(drafter: "Drafter", frontier: Frontier) -> "tuple[DraftForward, Iterator[int]]":
    """One batched draft forward of every tree's nodes; the second part is each tree's first row, and the end of all."""
    forward = drafter.expand([(growth.draft, nodes) for growth, nodes in frontier])
    return forward, accumulate([len(nodes) for _, nodes in frontier], initial=0)


def grow(drafter: "Drafter", growths: Sequence[Growth], beams: int, branch: int) -> list[Growth]:
    """One level of every tree that has room; returns the trees that gained a node."""
    frontier, rooms = [], []
    for growth in growths:
        if (room := drafter.room(growth.draft)) > 0 and (nodes := growth.waiting(beams)):
            frontier.append((growth, nodes))
            rooms.append(room)
    if not frontier:
        return []
    forward, first_rows = expand(drafter, frontier)
    grown = []
    for (growth, nodes), first, room in zip(frontier, first_rows, rooms, strict=False):
        if growth.take(nodes, forward, first, branch, room):
            grown.append(growth)
    return grown
