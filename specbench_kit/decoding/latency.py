"""How long a forward takes, from what it has to compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Row = tuple[int, int]
"""One request's part of a forward: new tokens, and tokens in KV before them."""


class LatencyModel(Protocol):
    """Predicts the seconds of one forward."""

    def seconds(self, rows: Sequence[Row]) -> float:
        """Of a batch."""


@dataclass(frozen=True, slots=True)
class InteractionModel:
    """a * new + b_compute * interactions + b_read * cached + c, summed over the batch (WISP Eq. 18 and 19).

    Seconds per new token, per pair of a new token and a token that it may attend to in full blocks of
    new x (cached + new), per cached token, and per forward.
    """

    a_s: float
    b_compute_s: float
    b_read_s: float
    c_s: float

    def seconds(self, rows: Sequence[Row]) -> float:
        total = self.c_s
        for new, cached in rows:
            total += self.a_s * new + self.b_compute_s * (new * (cached + new)) + self.b_read_s * cached
        return total


@dataclass(frozen=True, slots=True)
class ContextModel:
    """alpha * context + gamma * new + delta, summed over the batch (AdaSpec).

    The context of a new token is what stands before it: the cached tokens and the new ones to its left.
    """

    alpha_s: float
    gamma_s: float
    delta_s: float

    def seconds(self, rows: Sequence[Row]) -> float:
        total = self.delta_s
        for new, cached in rows:
            total += self.alpha_s * (new * cached + new * (new - 1) / 2) + self.gamma_s * new
        return total


@dataclass(frozen=True, slots=True)
class TableModel:
    """Seconds by the largest number of new tokens in the batch, from 1 on; the last one goes for all above."""

    by_new_tokens_s: tuple[float, ...]

    def seconds(self, rows: Sequence[Row]) -> float:
        return self.by_new_tokens_s[min(max(new for new, _ in rows), len(self.by_new_tokens_s)) - 1]
