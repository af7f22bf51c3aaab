"""How often, and how surely, a synthetic draft model is right. Imports nothing heavy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, pow, sqrt

from specbench_kit.core.errors import require

LEAST = 1e-12


@dataclass(frozen=True)
class Agreement:
    """`ranks[i]` is the chance that the target's token is the draft's likeliest but `i`.

    The chance of the likeliest varies from place to place, not at all with a `spread` of 0, over all that the others
    leave room for with 1, and the draft's probabilities tell it: as it is (`calibration` 1), with log-odds that are
    exaggerated (above 1) or played down. `correlation` is that of the chances at two places of one block of `block`
    tokens.
    """

    ranks: tuple[float, ...] = (0.7, 0.1, 0.05)
    spread: float = 0.5
    calibration: float = 1.0
    correlation: float = 0.0
    block: int = 16

    def __post_init__(self) -> None:
        shown = "+".join(f"{rank:g}" for rank in self.ranks)
        falling = all(a >= b for a, b in zip(self.ranks, self.ranks[1:], strict=False))
        fits = falling and all(0 <= rank <= 1 for rank in self.ranks) and sum(self.ranks) <= 1 + 1e-9
        require(
            fits,
            f"synthetic: ranks must be falling chances that come to 1 at most, as in 0.8+0.1+0.05, not {shown}",
        )
        require(0 <= self.spread <= 1, f"synthetic: spread must lie in 0..1, not {self.spread:g}")
        require(self.calibration > 0, f"synthetic: calibration must be above 0, not {self.calibration:g}")
        require(0 <= self.correlation <= 1, f"synthetic: correlation must lie in 0..1, not {self.correlation:g}")
        require(self.block >= 1, f"synthetic: block must be at least 1 token, not {self.block}")

    def chance(self, uniform: float) -> float:
        """Of the likeliest token at one place, by a random number; its mean is that of `ranks`."""
        mean = (self.ranks[0] - self._least) / (1 - self._least) if self._least < 1 else 1.0
        widest = self._least + (1 - self._least) * (pow(uniform, (1 - mean) / mean) if mean else 0.0)
        return (1 - self.spread) * self.ranks[0] + self.spread * widest

    def shares(self, chance: float) -> list[float]:
        """The chances of all ranks where that of the first is `chance`; their means are those of `ranks`."""
        others = (1 - chance) / (1 - self.ranks[0]) if self.ranks[0] < 1 else 0.0
        return [chance, *(rank * others for rank in self.ranks[1:])]

    def told(self, chance: float) -> float:
        """What the draft model says of a token with that chance; it stays the likeliest one."""
        if chance in (0, 1):
            return chance
        odds = pow(chance / (1 - chance), self.calibration)
        return max(self._least, odds / (1 + odds))

    @property
    def shared(self) -> float:
        """The chance that a place takes the random number of its block."""
        return sqrt(self.correlation)

    @cached_property
    def _least(self) -> float:
        """Below this the second token would be likelier than the first."""
        second = self.ranks[1] if len(self.ranks) > 1 else 0.0
        return second / (1 - self.ranks[0] + second) if second else 0.0


def logits_of(probabilities: Sequence[float], others: int) -> tuple[list[float], float]:
    """Of the ranked tokens in falling order, and of each of the `others`, below all of them."""
    ranked = [log(max(one, LEAST)) - 1e-4 * place for place, one in enumerate(probabilities)]
    left = max(1 - sum(probabilities), LEAST) / max(others, 1)
    return ranked, min(log(left), min(ranked) - 1e-3)
