"""How many tokens prompts and responses have: one number, or a distribution."""

from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.serving.counter_rng import Floats, Integers


@dataclass(frozen=True)
class LogNormalLengths:
    """Lengths whose logarithm is normal, by their mean in tokens and their standard deviation over it."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        if not (self.mean >= 1 and self.cv > 0):
            raise SkitError(f"lognormal: mean must be at least 1 token and cv above 0, not {self.mean:g}, {self.cv:g}")

    def drawn(self, chance: Floats) -> Integers:
        """A length for each random number, of 1 token at least."""
        normal = np.array([self._normal.inv_cdf(min(max(one, 1e-9), 1 - 1e-9)) for one in chance])
        lengths: Integers = np.maximum(np.rint(np.exp(normal)), 1).astype(np.int64)
        return lengths

    @cached_property
    def _normal(self) -> NormalDist:
        variance = log(1 + self.cv**2)
        return NormalDist(log(self.mean) - variance / 2, sqrt(variance))

    @property
    def longest(self) -> int:
        """Which one in a thousand exceeds."""
        return round(exp(self._normal.inv_cdf(0.999)))


Lengths = int | LogNormalLengths


def parse_lengths(text: str | int) -> Lengths:
    """`250`, or `lognormal:mean=90,cv=0.62`."""
    name, _, tail = str(text).partition(":")
    if name == "lognormal":
        return from_options(name, LogNormalLengths, tail)
    if not name.isdigit() or tail:
        raise SkitError(f"a length is a number of tokens or lognormal:mean=90,cv=0.62, not '{text}'")
    return int(name)


def longest(lengths: Lengths) -> int:
    """Tokens that room is needed for."""
    return lengths if isinstance(lengths, int) else lengths.longest
