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
    """What happened since the pipeline was last filled."""

    drafted: int = 0
    fed: int = 0
    accepted: int = 0
    deepest: int = 0
    steps: int = 0
    commits_s: list[float] = field(default_factory=list)
    fill: PipelineRound | None = None
    """The nodes themselves, where somebody watches."""


class RequestStream:
    """A request's slot and flight, the level that enters with the next step, and what is pruned ahead of it."""

    def __init__(self, session: Session, slot: int, stages: int, watched: bool, began: dict[Phase, float]) -> None:
        self.session, self.slot, self.began = session, slot, began
        self.ahead: Sequence[int] = session.tokens
        """Committed tokens that are yet to enter; the last of them becomes the root."""
        self.turn = 0
        """The step with which the root last entered."""
        self.level, self.scores = Level(), list[float]()
        self.prune: Prune | None = None
        self._stages, self._watched, self._ids = stages, watched, 0
        self.flight, self.tally = self._empty()

    @property
    def feed(self) -> Feed:
        """What the stages are told of it."""
        return Feed(self.slot, self.level, self.prune)

    def take(self, count: int) -> int:
        """Let at most so many of the tokens ahead make the level; returns how many there were."""
        taken, self.ahead = self.ahead[:count], self.ahead[count:]
        if taken and not self.ahead:
            *prefix, root = taken
            self.level, self.scores = self._number([root], [-1], prefix), [0.0]
        else:
            self.level = Level(prefix=taken)
        return len(taken)

    def trim(self, count: int) -> None:
        """Keep the likeliest nodes of the level; what is not fed is drafted again if it is still wanted."""
        level, rows = self.level, self.level.best(count, self.scores)
        self.tally.drafted -= len(level.tokens) - len(rows)
        self.level = Level(*([of[row] for row in rows] for of in (level.ids, level.tokens, level.parents)))
        self.scores = [self.scores[row] for row in rows]

    def refill(self, root: int) -> None:
        """Begin anew with the last committed token alone."""
        self.flight, self.tally = self._empty()
        self.ahead, self.level, self.scores = [root], Level(), []

    def enter(self) -> None:
        """The level enters the first stage, and all stages hand on what they hold."""
        self.flight.enter(self.level, self.scores)
        self.tally.steps += 1
        self.tally.fed += len(self.level.tokens)
        # The flight's root lies as deep as tokens were accepted, and every stage that works holds one level below.
        self.tally.deepest = max(self.tally.deepest, self.tally.accepted + len(self.flight.holds) - 1)
        if self.tally.fill is not None:
            self.tally.fill.take(self.flight)

    def go_on(self, children: Sequence[Child]) -> None:
        """Go on with the drafted nodes, while the root is still on its way."""
        self.prune = None
        self._next_level(children, range(len(self.flight.tokens)))

    def commit(self, token: int, children: Sequence[Child], now_s: float) -> bool:
        """Take the token after the root, and go on below it; returns whether it was in flight."""
        tally, root = self.tally, self.flight.child(token)
        tally.commits_s.append(now_s - self.session.arrival_s)
        if tally.fill is not None:
            tally.fill.commit(token, None if root is None else self.flight.ids[root])
        kept = [] if root is None else self.flight.below(root)
        self.prune = Prune([0], kept)
        if root is None:
            return False
        tally.accepted += 1
        self._next_level(children, kept)  # before the flight is cut back: the children's parents are its places
        self.flight.keep(kept)
        return True

    def _next_level(self, children: Sequence[Child], kept: Sequence[int]) -> None:
        """Of the drafted nodes those whose parents are kept."""
        bottom, places = self.flight.bottom, dict(zip(kept, count(), strict=False))
        fed = [(token, places[bottom[row]], score) for row, token, score in children if bottom[row] in places]
        tokens, parents, self.scores = map(list, zip(*fed, strict=True)) if fed else ([], [], [])
        self.level = self._number(tokens, parents)

    def _number(self, tokens: list[int], parents: list[int], prefix: Sequence[int] = ()) -> Level:
        first, self._ids = self._ids, self._ids + len(tokens)
        return Level(list(range(first, self._ids)), tokens, parents, prefix)

    def _empty(self) -> tuple[Flight, RoundTally]:
        return Flight(self._stages), RoundTally(fill=PipelineRound(self.session.request.id) if self._watched else None)
