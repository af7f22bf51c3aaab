"""Which nodes of a tree are in which stage of a pipeline."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import NamedTuple

from specbench_kit.decoding.detail import RoundDetail


class Prune(NamedTuple):
    """What happens to a flight: the places `path` join the committed prefix, those in `keep` stay, the others go."""

    path: Sequence[int]
    keep: Sequence[int]


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes that enter the first stage together.

    A parent is a place in the flight, or -1 for the committed prefix. The tokens of `prefix` go ahead of the nodes and
    join the committed prefix at once. An id stays with its node; no two nodes of a request have the same.
    """

    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    prefix: Sequence[int] = ()

    @property
    def weight(self) -> int:
        """Tokens that a stage has to compute."""
        return len(self.prefix) + len(self.tokens)

    def best(self, count: int, scores: Sequence[float]) -> list[int]:
        """Its `count` likeliest nodes, in the order in which they stand."""
        likeliest = sorted(range(len(scores)), key=lambda row: -scores[row])
        return sorted(likeliest[:count])

    def pick(self, rows: Sequence[int], kept: Sequence[int]) -> "Level":
        """Some of its nodes, on their own, after all but the places `kept` have gone from the flight."""
        new = {place: index for index, place in enumerate(kept)}
        parents = [new.get(self.parents[row], -1) for row in rows]
        return Level([self.ids[row] for row in rows], [self.tokens[row] for row in rows], parents)


class Flight:
    """The tree in a pipeline: its nodes in the order in which they were fed, the root first, level by level."""

    def __init__(self, stages: int) -> None:
        self.ids: list[int] = []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.sizes = deque([0] * stages)
        """Nodes in each stage, the first stage's first."""
        self.prefixes = deque([0] * stages)
        """Tokens of the prompt in each stage, which join the committed prefix as they go."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prefix(self) -> int:
        """Tokens of the prompt that go through the stages."""
        return sum(self.prefixes)

    @property
    def bottom(self) -> range:
        """Places of the level that was fed last."""
        end = len(self.tokens)
        for size in self.sizes:
            if size:
                return range(end - size, end)
        return range(end, end)

    @property
    def answers(self) -> bool:
        """Whether the root is in the last stage, which gives the token after it."""
        return self.sizes[-1] > 0

    @property
    def holds(self) -> list[tuple[int, list[int]]]:
        """Every stage that works, counted from 1, and the ids of the nodes that it works on."""
        found, end = [], len(self.tokens)
        for stage, size in enumerate(self.sizes, 1):
            if size:
                found.append((stage, self.ids[end - size : end]))
            end -= size
        return found

    def enter(self, level: Level, scores: Sequence[float]) -> None:
        """All stages hand on what they hold, and the first one takes in a level."""
        self.ids += level.ids
        self.tokens += level.tokens
        self.parents += level.parents
        self.scores += scores
        self.prefixes.pop()
        self.prefixes.appendleft(len(level.prefix))
        self.sizes.pop()
        self.sizes.appendleft(len(level.tokens))

    def child(self, token: int) -> int | None:
        """The place of the root's child with that token."""
        places = range(1, len(self.tokens))
        return next((place for place in places if not self.parents[place] and self.tokens[place] == token), None)

    def below(self, place: int) -> list[int]:
        """A node and its descendants."""
        inside, parents = [False] * len(self.tokens), self.parents
        inside[place] = True
        for node in range(place + 1, len(self.tokens)):
            inside[node] = inside[parents[node]]
        return [node for node in range(place, len(self.tokens)) if inside[node]]

    def keep(self, places: Sequence[int]) -> None:
        """The root joins the committed prefix; of the others these nodes stay."""
        self.prefixes = deque([0] * len(self.sizes))
        new = {place: index for index, place in enumerate(places)}
        end = len(self.tokens)
        for stage, size in enumerate(self.sizes):
            self.sizes[stage] = bisect_left(places, end) - bisect_left(places, end - size)
            end -= size
        self.ids = [self.ids[place] for place in places]
        self.tokens = [self.tokens[place] for place in places]
        self.scores = [self.scores[place] for place in places]
        self.parents = [new.get(self.parents[place], -1) for place in places]


@dataclass(slots=True)
class PipelineRound:
    """Every node that was fed since a pipeline was last filled, whatever became of it."""

    request_id: str
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)

    def take(self, flight: Flight) -> None:
        """Add the level that has just entered a flight."""
        for place in flight.bottom:
            if flight.ids[place] in self._places:
                continue  # nothing was fed
            parent = flight.parents[place]
            self._places[flight.ids[place]] = len(self.tokens)
            self.parents.append(-1 if parent < 0 else self._places[flight.ids[parent]])
            self.tokens.append(flight.tokens[place])
            self.scores.append(flight.scores[place])

    def commit(self, token: int, node_id: int | None) -> None:
        """A token was committed, which was in flight if it is a node's."""
        self.committed.append(token)
        if node_id is not None:
            self.path.append(self._places[node_id])

    def detail(self) -> RoundDetail:
        """The whole tree, as if it had been verified in one go."""
        steps = zip(self.scores[1:], self.parents[1:], strict=True)
        return RoundDetail(
            tokens=self.tokens,
            parents=self.parents,
            probabilities=[1.0, *(round(exp(score - self.scores[parent]), 4) for score, parent in steps)],
            submitted=list(range(1, len(self.tokens))),
            path=self.path,
            bonus=self.committed[-1],
            committed=len(self.committed),
            inherited=0,
            proactive=0,
        )
