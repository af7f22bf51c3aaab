"""When to stop drafting, by dynamic programming over the chances of drafted tokens and the time
that they take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.98, 0.99, 0.995)
"""Chances of acceptance at which one class of tokens ends and the next begins: narrow where drafts
go on for long.
"""
SURVIVALS = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 48)])
"""Probabilities that a whole draft is accepted, between which values are interpolated; they are
linear in pieces.
"""
SOLVED = 1e-9
"""The relative change of the speed at which the search for it ends."""
MOST_STEPS = 50
"""The most steps of that search; Dinkelbach's method takes a handful."""


class ChanceModel:
    """How the chance of acceptance goes on from one drafted token to the next: a Markov chain over
    classes.

    It is counted from drafts alone, whether or not they were accepted. Before there are counts,
    every class follows every class.
    """

    def __init__(self, edges: Sequence[float] = EDGES) -> None:
        self.edges = np.asarray(edges)
        classes = len(self.edges) + 1
        self.first = np.full(classes, 1 / classes)
        """Tokens that began a draft, by class."""
        self.followed = np.zeros((classes, classes))
        """Pairs of tokens that followed each other, by the classes of both."""
        middles = np.convolve([0.0, *self.edges, 1.0], [0.5, 0.5], "valid")
        self.sums = middles
        self.counts = np.ones(classes)

    def learn(self, chances: Sequence[float]) -> None:
        """Add the chances of one draft."""
        classes = self.classes(chances)
        if not len(classes):
            return
        self.first[classes[0]] += 1
        np.add.at(self.followed, (classes[:-1], classes[1:]), 1)
        np.add.at(self.sums, classes, np.asarray(chances))
        np.add.at(self.counts, classes, 1)

    def classes(self, chances: Sequence[float]) -> NDArray[np.intp]:
        """Return the class of every chance."""
        return np.searchsorted(self.edges, np.asarray(chances, dtype=float), side="right")

    @property
    def chances(self) -> NDArray[np.float64]:
        """Return the mean chance of each class."""
        means: NDArray[np.float64] = self.sums / self.counts
        return means

    @property
    def start(self) -> NDArray[np.float64]:
        """Return the probability of each class for the first token of a draft."""
        shares: NDArray[np.float64] = self.first / self.first.sum()
        return shares

    @property
    def following(self) -> NDArray[np.float64]:
        """Return the probabilities [class, class] of the next token's class; one count is that of
        all tokens.
        """
        smoothed = self.followed + self.counts / self.counts.sum()
        shares: NDArray[np.float64] = smoothed / smoothed.sum(axis=1, keepdims=True)
        return shares


@dataclass(frozen=True)
class RoundSeconds:
    """The seconds of a round, per request: `base_s` without a draft, and what each drafted and each
    sent token adds.

    `draft_s[i]` and `send_s[i]` are those of token i + 1.
    """

    base_s: float
    draft_s: Sequence[float]
    send_s: Sequence[float]


@dataclass
class StoppingRule:
    """The rule that commits the most expected tokens per second, under a model of the chances and
    of the time.

    With s tokens per second, a second costs s tokens. A drafted token is sent, and another one is
    drafted, while this is expected to gain more tokens than its seconds cost. `speed` is the s at
    which the best rule reaches s.
    """

    model: ChanceModel
    seconds: RoundSeconds
    speed: float = 0.0
    _gains: list[NDArray[np.float64]] = field(default_factory=list)
    """By tokens drafted, the gain [class, survival] of drafting another one."""

    def __post_init__(self) -> None:
        tokens = 1.0
        seconds = self.seconds.base_s
        speed = self.speed or tokens / seconds
        for _ in range(MOST_STEPS):
            tokens, seconds = self._solve(speed)
            self.speed = tokens / seconds
            if abs(self.speed - speed) <= SOLVED * self.speed:
                return
            speed = self.speed

    def sends(self, drafted: int, chance: float, survival: float) -> bool:
        """Return whether the newest of `drafted` tokens is to be sent; `survival` is the chance of
        all of them.
        """
        ahead = max(0.0, self._gain(drafted, chance, survival))
        return survival - self.speed * self.seconds.send_s[drafted - 1] + ahead >= 0

    def goes_on(self, drafted: int, chance: float, survival: float) -> bool:
        """Return whether another token is to be drafted behind the newest one, which is sent."""
        return self._gain(drafted, chance, survival) > 0

    def _gain(self, drafted: int, chance: float, survival: float) -> float:
        if drafted >= len(self.seconds.draft_s):
            return 0.0
        (token_class,) = self.model.classes([chance])
        return float(np.interp(survival, SURVIVALS, self._gains[drafted][token_class]))

    def _solve(self, speed: float) -> tuple[float, float]:
        """Return the expected tokens and seconds of a round by the best rule where a second costs
        `speed` tokens.
        """
        chances = self.model.chances
        following = self.model.following
        reached = np.outer(chances, SURVIVALS)
        shape = reached.shape
        gains, ahead_tokens, ahead_s = (np.zeros(shape) for _ in range(3))
        self._gains = [gains]
        for draft_s, send_s in zip(
            reversed(self.seconds.draft_s), reversed(self.seconds.send_s), strict=True
        ):
            goes_on = _at(gains, reached) > 0
            more_tokens = np.where(goes_on, _at(ahead_tokens, reached), 0.0) + reached
            more_s = np.where(goes_on, _at(ahead_s, reached), 0.0) + send_s
            sends = more_tokens - speed * more_s >= 0
            token_gains = np.where(sends, more_tokens, 0.0)
            token_s = np.where(sends, more_s, 0.0)
            ahead_tokens = following @ token_gains
            ahead_s = draft_s + following @ token_s
            gains = ahead_tokens - speed * ahead_s
            self._gains.insert(0, gains)
        # The first token is always drafted, and comes from the distribution of first tokens.
        tokens, sending_s = (
            float(self.model.start @ table[:, -1]) for table in (token_gains, token_s)
        )
        return 1.0 + tokens, self.seconds.base_s + self.seconds.draft_s[0] + sending_s


def _at(table: NDArray[np.float64], survivals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values [class, survival] of a table at other survivals, by class."""
    return np.stack(
        [np.interp(wanted, SURVIVALS, row) for wanted, row in zip(survivals, table, strict=True)]
    )
