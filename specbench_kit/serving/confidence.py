"""How sure a draft model is of each token where only odds are known."""

from collections.abc import Sequence

import numpy as np

from specbench_kit.serving.counter_rng import Floats, Integers

GRID = 512
"""Values of a chance that are told apart."""


class ConfidenceModel:
    """Chances of drafted tokens, by place in the draft, around the rate of that place.

    Beta-distributed with so much `spread`: 0 gives every token the same chance, towards 1 all are sure, rightly or
    wrongly (the variance is that share of rate x (1 - rate)). Of a token whose outcome is decided, the chance is drawn
    from those that lead to it, so that of all tokens with chance p the share p is right. What the draft model says of
    a token are these odds times its `overconfidence`.
    """

    def __init__(self, rates: Sequence[float], spread: float, overconfidence: float = 1.0) -> None:
        self.rates = np.array(rates)
        self._spread, self._overconfidence = spread, overconfidence
        self._values = (np.arange(GRID) + 0.5) / GRID
        if 0 < spread < 1:
            self._below = np.array([self._tables(min(max(rate, 1 / GRID), 1 - 1 / GRID)) for rate in rates])

    def drawn(self, accepted: Integers, chance: Floats) -> Floats:
        """Of requests whose draft is right for so many tokens, from random numbers [requests, places]."""
        chances = self._chances(accepted, chance)
        told: Floats = chances * self._overconfidence / (1 + chances * (self._overconfidence - 1))
        return told

    def _chances(self, accepted: Integers, chance: Floats) -> Floats:
        if not self._spread or not len(self.rates):
            return np.broadcast_to(self.rates, chance.shape)
        places = np.arange(len(self.rates))
        right = places < accepted[:, None]
        if self._spread >= 1:
            sure: Floats = right.astype(np.float64)
            return sure
        outcome = np.where(right, _RIGHT, np.where(places == accepted[:, None], _WRONG, _OPEN))
        found = np.empty(chance.shape)
        for place, tables in enumerate(self._below):
            for which, below in enumerate(tables):
                of = outcome[:, place] == which
                found[of, place] = np.interp(chance[of, place], below, self._values)
        return found

    def _tables(self, rate: float) -> list[Floats]:
        """Shares of tokens whose chance is at most each value: of right ones, wrong ones, and of all."""
        total, values = 1 / self._spread - 1, self._values
        log_density = (rate * total - 1) * np.log(values) + ((1 - rate) * total - 1) * np.log1p(-values)
        density = np.exp(log_density - log_density.max())
        weights = density * values, density * (1 - values), density
        return [(np.cumsum(one) - one / 2) / one.sum() for one in weights]


_RIGHT, _WRONG, _OPEN = range(3)
