"""The confidence that a draft model states for each token, where only acceptance rates are known."""

from collections.abc import Sequence

import numpy as np

from specbench_kit.serving.arrays import Floats, Integers

GRID = 512
"""Number of confidence values that are distinguished."""


class ConfidenceModel:
    """Confidences of drafted tokens, by position in the draft, scattered around the acceptance rate of that position.

    The true probability that a token is right follows a Beta distribution whose variance is `spread` x rate x
    (1 - rate): with 0 every token has the rate itself, towards 1 every token is certain, rightly or wrongly. For a
    token whose outcome is already drawn, the probability is sampled from those that lead to this outcome, so that of
    all tokens with probability p the share p is right. The draft model reports the odds times `overconfidence`.
    """

    def __init__(self, rates: Sequence[float], spread: float, overconfidence: float = 1.0) -> None:
        self.rates = np.array(rates)
        self._spread, self._overconfidence = spread, overconfidence
        self._values = (np.arange(GRID) + 0.5) / GRID
        if 0 < spread < 1:
            self._cumulative = np.array(
                [self._cumulative_tables(min(max(rate, 1 / GRID), 1 - 1 / GRID)) for rate in rates]
            )

    def reported(self, accepted: Integers, uniform: Floats) -> Floats:
        """Return the confidences that the draft model reports, [requests, positions].

        `accepted` is how many tokens of each request's draft are right, `uniform` are random numbers [requests,
        positions].
        """
        true = self.sample(accepted, uniform)
        reported: Floats = true * self._overconfidence / (1 + true * (self._overconfidence - 1))
        return reported

    def sample(self, accepted: Integers, uniform: Floats) -> Floats:
        """Return the true probabilities that the tokens are right, given the outcome; shapes as in `reported`."""
        if not self._spread or not len(self.rates):
            return np.broadcast_to(self.rates, uniform.shape)
        positions = np.arange(len(self.rates))
        is_right = positions < accepted[:, None]
        if self._spread >= 1:
            certain: Floats = is_right.astype(np.float64)
            return certain
        # The first token that is not accepted is known to be wrong; nothing is known of those behind it.
        outcome = np.where(is_right, _RIGHT, np.where(positions == accepted[:, None], _WRONG, _UNDECIDED))
        sampled = np.empty(uniform.shape)
        for position, tables in enumerate(self._cumulative):
            for kind, cumulative in enumerate(tables):
                rows = outcome[:, position] == kind
                sampled[rows, position] = np.interp(uniform[rows, position], cumulative, self._values)
        return sampled

    def _cumulative_tables(self, rate: float) -> list[Floats]:
        """Return the cumulative distributions over `self._values` of right tokens, of wrong ones, and of all."""
        total, values = 1 / self._spread - 1, self._values
        log_density = (rate * total - 1) * np.log(values) + ((1 - rate) * total - 1) * np.log1p(-values)
        density = np.exp(log_density - log_density.max())
        weights = density * values, density * (1 - values), density
        return [(np.cumsum(weight) - weight / 2) / weight.sum() for weight in weights]


_RIGHT, _WRONG, _UNDECIDED = range(3)
