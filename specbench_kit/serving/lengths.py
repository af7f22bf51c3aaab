"""Lengths of prompts and responses in tokens: one number, or a distribution."""

from dataclasses import dataclass
from functools import cached_property
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.serving.arrays import Floats, Integers

NO_LENGTHS = (
    "neither arrivals nor acceptance state the lengths of responses: give --prompt-tokens and --output-tokens, such as "
    "200 and 128"
)
"""The error where no part of a scenario says how long prompts and outputs are."""


@dataclass(frozen=True)
class LogNormalLengths:
    """Log-normal lengths, by their mean in tokens and their coefficient of variation `cv`."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        if not (self.mean >= 1 and self.cv > 0):
            raise SkitError(
                f"lognormal: mean must be at least 1 token and cv above 0, not {self.mean:g}, {self.cv:g}"
            )

    def sample(self, uniform: Floats) -> Integers:
        """Return one length, of at least 1 token, per random number."""
        # At 0 and 1 the normal distribution has no quantile.
        logarithms = np.array(
            [self._normal.inv_cdf(min(max(number, 1e-9), 1 - 1e-9)) for number in uniform]
        )
        lengths: Integers = np.maximum(np.rint(np.exp(logarithms)), 1).astype(np.int64)
        return lengths

    @cached_property
    def _normal(self) -> NormalDist:
        variance = log(1 + self.cv**2)
        return NormalDist(log(self.mean) - variance / 2, sqrt(variance))

    @property
    def longest(self) -> int:
        """Length that one in a thousand exceeds."""
        return round(exp(self._normal.inv_cdf(0.999)))


Lengths = int | LogNormalLengths


def parse_lengths(text: str | int) -> Lengths:
    """Return the lengths that `250` or `lognormal:mean=90,cv=0.62` names."""
    name, _, options = str(text).partition(":")
    if name == "lognormal":
        return from_options(name, LogNormalLengths, options)
    if not name.isdigit() or options:
        raise SkitError(
            f"a length is a number of tokens or lognormal:mean=90,cv=0.62, not '{text}'"
        )
    return int(name)


def shortest(lengths: Lengths) -> int:
    """Return the length that no response falls below, in tokens."""
    return lengths if isinstance(lengths, int) else 1


def longest(lengths: Lengths) -> int:
    """Return the length that a scenario has to have room for, in tokens."""
    return lengths if isinstance(lengths, int) else lengths.longest
