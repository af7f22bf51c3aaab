"""The tree that is in flight through a pipeline, and which of its nodes is in which stage.

A node of a flight is its index among those in flight, in the order in which they were fed: the root
is node 0. As the flight is cut back with every token, the same token has another index later; its
id stays.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import NamedTuple

from specbench_kit.decoding.detail import RoundDetail


class Prune(NamedTuple):
    """A cut of a flight: the nodes `path` join the committed prefix, those in `keep` stay, all
    others are dropped.
    """

    path: Sequence[int]
    keep: Sequence[int]


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes that enter the first stage together.

    A parent is a node of the flight, or -1 for the committed prefix. The tokens of `prefix` enter
    ahead of the nodes and join the committed prefix at once. An id is unique among all nodes that a
    request ever feeds.
    """

    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    prefix: Sequence[int] = ()

    @property
    def token_count(self) -> int:
        """The number of tokens that a stage has to compute."""
        return len(self.prefix) + len(self.tokens)

    def best(self, count: int, scores: Sequence[float]) -> list[int]:
        """Return the rows of the `count` likeliest nodes, in the level's order."""
        likeliest = sorted(range(len(scores)), key=lambda row: -scores[row])
        return sorted(likeliest[:count])

    def pick(self, rows: Sequence[int], kept: Sequence[int]) -> "Level":
        """Return the nodes `rows`, with parents renumbered after the flight was pruned to
        `kept`.
        """
        renumbered = {node: index for index, node in enumerate(kept)}
        parents = [renumbered.get(self.parents[row], -1) for row in rows]
        return Level([self.ids[row] for row in rows], [self.tokens[row] for row in rows], parents)


class Flight:
    """The tree in a pipeline: its nodes in the order in which they were fed, the root first, level
    by level.
    """

    def __init__(self, stages: int) -> None:
        self.ids: list[int] = []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.sizes = deque([0] * stages)
        """The number of nodes in each stage, the first stage's first. Levels move on in step, so
        that nodes in the order of feeding are, read from the end, those of the first stage, then of
        the second, and so on.
        """
        self.prefixes = deque([0] * stages)
        """The number of prompt tokens in each stage; they join the committed prefix as they go."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prefix(self) -> int:
        """The number of prompt tokens that are on their way through the stages."""
        return sum(self.prefixes)

    @property
    def bottom(self) -> range:
        """The nodes of the level that was fed last."""
        end = len(self.tokens)
        for size in self.sizes:
            if size:
                return range(end - size, end)
        return range(end, end)

    @property
    def root_in_last_stage(self) -> bool:
        """True if the last stage has the root, and so gives the token after it."""
        return self.sizes[-1] > 0

    @property
    def occupancy(self) -> list[tuple[int, list[int]]]:
        """Every stage that has nodes, counted from 1, and their ids."""
        occupancy = []
        end = len(self.tokens)
        for stage, size in enumerate(self.sizes, 1):
            if size:
                occupancy.append((stage, self.ids[end - size : end]))
            end -= size
        return occupancy

    def enter(self, level: Level, scores: Sequence[float]) -> None:
        """Move every stage's nodes to the next stage, and a new level into the first."""
        self.ids += level.ids
        self.tokens += level.tokens
        self.parents += level.parents
        self.scores += scores
        self.prefixes.pop()
        self.prefixes.appendleft(len(level.prefix))
        self.sizes.pop()
        self.sizes.appendleft(len(level.tokens))

    def child(self, token: int) -> int | None:
        """Return the root's child with this token; None if it is not in flight."""
        nodes = range(1, len(self.tokens))
        return next(
            (node for node in nodes if not self.parents[node] and self.tokens[node] == token), None
        )

    def below(self, node: int) -> list[int]:
        """Return a node and its descendants."""
        inside = [False] * len(self.tokens)
        parents = self.parents
        inside[node] = True
        for later in range(node + 1, len(self.tokens)):
            inside[later] = inside[parents[later]]
        return [later for later in range(node, len(self.tokens)) if inside[later]]

    def keep(self, nodes: Sequence[int]) -> None:
        """Cut the flight back to these nodes; the root joins the committed prefix."""
        self.prefixes = deque([0] * len(self.sizes))
        renumbered = {node: index for index, node in enumerate(nodes)}
        end = len(self.tokens)
        for stage, size in enumerate(self.sizes):
            self.sizes[stage] = bisect_left(nodes, end) - bisect_left(nodes, end - size)
            end -= size
        self.ids = [self.ids[node] for node in nodes]
        self.tokens = [self.tokens[node] for node in nodes]
        self.scores = [self.scores[node] for node in nodes]
        self.parents = [renumbered.get(self.parents[node], -1) for node in nodes]


@dataclass(slots=True)
class PipelineRound:
    """Every node that was fed since the pipeline was last refilled, whatever became of it."""

    request_id: str
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    _nodes: dict[int, int] = field(default_factory=dict)
    """Node of this round's tree by the id that it has in flight."""

    def take(self, flight: Flight) -> None:
        """Add the level that has just entered a flight."""
        for node in flight.bottom:
            if flight.ids[node] in self._nodes:
                continue  # nothing was fed in this step, and the bottom is an older level
            parent = flight.parents[node]
            self._nodes[flight.ids[node]] = len(self.tokens)
            self.parents.append(-1 if parent < 0 else self._nodes[flight.ids[parent]])
            self.tokens.append(flight.tokens[node])
            self.scores.append(flight.scores[node])

    def commit(self, token: int, node_id: int | None) -> None:
        """Add a committed token, and the id of its node if it was in flight."""
        self.committed.append(token)
        if node_id is not None:
            self.path.append(self._nodes[node_id])

    def detail(self) -> RoundDetail:
        """Return the whole tree as if it had been verified at once."""
        steps = zip(self.scores[1:], self.parents[1:], strict=True)
        return RoundDetail(
            tokens=self.tokens,
            parents=self.parents,
            probabilities=[
                1.0,
                *(round(exp(score - self.scores[parent]), 4) for score, parent in steps),
            ],
            submitted=list(range(1, len(self.tokens))),
            path=self.path,
            bonus=self.committed[-1],
            committed=len(self.committed),
            inherited=0,
            proactive=0,
        )
