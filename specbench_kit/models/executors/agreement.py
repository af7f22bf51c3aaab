"""How often a synthetic draft model is right, and how well its probabilities tell. Imports nothing
heavy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, pow, sqrt

from specbench_kit.core.errors import require

LEAST = 1e-12


@dataclass(frozen=True)
class Agreement:
    """The agreement of a synthetic draft model with its target.

    `ranks[i]` is the chance that the target's token is the draft's token of rank i, counted from the likeliest. The
    chance of the likeliest token varies between positions: not at all with `spread` 0, over the whole possible range
    with 1. The draft's probabilities report that chance: exactly with `calibration` 1, with exaggerated log-odds above
    1, with understated ones below. `correlation` is the correlation of the chances at two positions of one block of
    `block` tokens.
    """

    ranks: tuple[float, ...] = (0.7, 0.1, 0.05)
    spread: float = 0.5
    calibration: float = 1.0
    correlation: float = 0.0
    block: int = 16

    def __post_init__(self) -> None:
        shown = "+".join(f"{rank:g}" for rank in self.ranks)
        falling = all(a >= b for a, b in zip(self.ranks, self.ranks[1:], strict=False))
        fits = (
            falling and all(0 <= rank <= 1 for rank in self.ranks) and sum(self.ranks) <= 1 + 1e-9
        )
        require(
            fits,
            f"synthetic: ranks must be falling chances that come to 1 at most, as in 0.8+0.1+0.05, not {shown}",
        )
        require(0 <= self.spread <= 1, f"synthetic: spread must lie in 0..1, not {self.spread:g}")
        require(
            self.calibration > 0,
            f"synthetic: calibration must be above 0, not {self.calibration:g}",
        )
        require(
            0 <= self.correlation <= 1,
            f"synthetic: correlation must lie in 0..1, not {self.correlation:g}",
        )
        require(self.block >= 1, f"synthetic: block must be at least 1 token, not {self.block}")

    def chance(self, uniform: float) -> float:
        """Return the chance of the likeliest token at a position from a random number; its mean is
        `ranks[0]`.
        """
        mean = (self.ranks[0] - self._least) / (1 - self._least) if self._least < 1 else 1.0
        widest = self._least + (1 - self._least) * (
            pow(uniform, (1 - mean) / mean) if mean else 0.0
        )
        return (1 - self.spread) * self.ranks[0] + self.spread * widest

    def shares(self, chance: float) -> list[float]:
        """Return the chances of all ranks given the chance of the first; their means are
        `ranks`.
        """
        scale = (1 - chance) / (1 - self.ranks[0]) if self.ranks[0] < 1 else 0.0
        return [chance, *(rank * scale for rank in self.ranks[1:])]

    def reported(self, chance: float) -> float:
        """Return the probability that the draft model reports for a token of this chance; it stays
        the likeliest.
        """
        if chance in (0, 1):
            return chance
        odds = pow(chance / (1 - chance), self.calibration)
        return max(self._least, odds / (1 + odds))

    @property
    def shared(self) -> float:
        """Return the chance that a position uses the random number of its block, which gives
        `correlation`.
        """
        return sqrt(self.correlation)

    @cached_property
    def _least(self) -> float:
        """Return the smallest chance of the first token at which the second is not likelier."""
        second = self.ranks[1] if len(self.ranks) > 1 else 0.0
        return second / (1 - self.ranks[0] + second) if second else 0.0


def logits_of(probabilities: Sequence[float], others: int) -> tuple[list[float], float]:
    """Return the logits of the ranked tokens, in falling order, and the lower logit of each of
    `others` tokens.
    """
    # Small steps keep tokens of equal probability in the order of their ranks.
    ranked = [
        log(max(probability, LEAST)) - 1e-4 * rank for rank, probability in enumerate(probabilities)
    ]
    remainder = max(1 - sum(probabilities), LEAST) / max(others, 1)
    return ranked, min(log(remainder), min(ranked) - 1e-3)
