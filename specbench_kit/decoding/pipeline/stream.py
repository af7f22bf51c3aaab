"""One request on its way through a pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from specbench_kit.decoding.clock import Phase
from specbench_kit.decoding.pipeline.flight import Flight, Level, PipelineRound, Prune
from specbench_kit.decoding.pipeline.stages import Feed
from specbench_kit.decoding.policy import Child
from specbench_kit.decoding.session import Session


@dataclass(slots=True)
class RoundTally:
    """The counts since the pipeline was last refilled."""

    drafted: int = 0
    fed: int = 0
    accepted: int = 0
    deepest: int = 0
    steps: int = 0
    commits_s: list[float] = field(default_factory=list)
    nodes: PipelineRound | None = None
    """The nodes themselves, if somebody watches the rounds."""


class RequestStream:
    """A request's slot and flight, the level that enters with the next step, and the prune that
    goes ahead of it.

    With every step the stages prune first and then take in the level; so a level's parents are
    nodes of the flight as it is after the prune.
    """

    def __init__(
        self, session: Session, slot: int, stages: int, watched: bool, began: dict[Phase, float]
    ) -> None:
        self.session = session
        self.slot = slot
        self.began = began
        """The totals of `PhaseShares` when the round began."""
        self.to_enter: Sequence[int] = session.tokens
        """Committed tokens that are yet to enter; the last of them becomes the root."""
        self.last_entry = 0
        """The step with which the root last entered."""
        self.level = Level()
        self.scores = list[float]()
        self.prune: Prune | None = None
        self._stages = stages
        self._watched = watched
        self._ids = 0
        self.flight, self.tally = self._empty()

    @property
    def feed(self) -> Feed:
        """The request's part of the step, as the stages are told."""
        return Feed(self.slot, self.level, self.prune)

    def take(self, limit: int) -> int:
        """Make a level of at most `limit` of the tokens that are yet to enter; return how many it
        has.
        """
        tokens, self.to_enter = self.to_enter[:limit], self.to_enter[limit:]
        if tokens and not self.to_enter:
            *prefix, root = tokens
            self.level = self._numbered([root], [-1], prefix)
            self.scores = [0.0]
        else:
            self.level = Level(prefix=tokens)
        return len(tokens)

    def trim(self, limit: int) -> None:
        """Cut the level to its likeliest nodes; nodes that are not fed are drafted again if they
        are still needed.
        """
        level = self.level
        rows = level.best(limit, self.scores)
        self.tally.drafted -= len(level.tokens) - len(rows)
        self.level = Level(
            ids=[level.ids[row] for row in rows],
            tokens=[level.tokens[row] for row in rows],
            parents=[level.parents[row] for row in rows],
        )
        self.scores = [self.scores[row] for row in rows]

    def refill(self, root: int) -> None:
        """Begin a new round with the last committed token alone."""
        self.flight, self.tally = self._empty()
        self.to_enter = [root]
        self.level = Level()
        self.scores = []

    def enter(self) -> None:
        """Move the level into the first stage, and every stage's nodes on to the next stage."""
        self.flight.enter(self.level, self.scores)
        self.tally.steps += 1
        self.tally.fed += len(self.level.tokens)
        # The flight's root lies as deep as tokens were accepted, and every stage that works has one
        # level below it.
        self.tally.deepest = max(
            self.tally.deepest, self.tally.accepted + len(self.flight.occupancy) - 1
        )
        if self.tally.nodes is not None:
            self.tally.nodes.take(self.flight)

    def grow(self, children: Sequence[Child]) -> None:
        """Make the drafted nodes the next level, while the root is still on its way."""
        self.prune = None
        self._set_level(children, range(len(self.flight.tokens)))

    def commit(self, token: int, children: Sequence[Child], now_s: float) -> bool:
        """Commit the token after the root, and continue below its node; return whether it was in
        flight.

        The stages prune with the next step; the flight is cut back here at once.
        """
        tally = self.tally
        root = self.flight.child(token)
        tally.commits_s.append(now_s - self.session.arrival_s)
        if tally.nodes is not None:
            tally.nodes.commit(token, None if root is None else self.flight.ids[root])
        subtree = [] if root is None else self.flight.below(root)
        self.prune = Prune([0], subtree)
        if root is None:
            return False
        tally.accepted += 1
        self._set_level(
            children, subtree
        )  # before the flight is cut back: the children's parents are its nodes
        self.flight.keep(subtree)
        return True

    def _set_level(self, children: Sequence[Child], kept: Sequence[int]) -> None:
        """Make the next level of those drafted nodes whose parents are kept."""
        bottom = self.flight.bottom
        renumbered = dict(zip(kept, count(), strict=False))
        fed = [
            (token, renumbered[bottom[row]], score)
            for row, token, score in children
            if bottom[row] in renumbered
        ]
        tokens, parents, self.scores = map(list, zip(*fed, strict=True)) if fed else ([], [], [])
        self.level = self._numbered(tokens, parents)

    def _numbered(self, tokens: list[int], parents: list[int], prefix: Sequence[int] = ()) -> Level:
        first, self._ids = self._ids, self._ids + len(tokens)
        return Level(list(range(first, self._ids)), tokens, parents, prefix)

    def _empty(self) -> tuple[Flight, RoundTally]:
        nodes = PipelineRound(self.session.request.id) if self._watched else None
        return Flight(self._stages), RoundTally(nodes=nodes)
