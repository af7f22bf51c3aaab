"""Random arrivals whose rate changes over time: in waves, or from level to level."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, pi
from typing import Self

import numpy as np

from specbench_kit.core.errors import require
from specbench_kit.serving.arrivals import ArrivalProcess, NextRequests
from specbench_kit.serving.counter_rng import Floats, Integers

POINTS = 256
"""Of a wave, between which its rate is taken as constant."""


@dataclass(frozen=True)
class VaryingRate(ArrivalProcess):
    """Random arrivals, `rate_per_s` over all devices at a mean; their rate goes through one cycle over and over."""

    rate_per_s: float

    def __post_init__(self) -> None:
        require(self.rate_per_s > 0, f"the arrival rate must be above 0 per second, not {self.rate_per_s:g}")

    @abstractmethod
    def cycle(self) -> tuple[Floats, Floats]:
        """Seconds [n + 1] from 0 on, and the rate [n] between each two of them, of any mean."""

    def ask(self, devices: Integers, of: int, number: Integers, before_s: Floats, chance: Floats) -> NextRequests:
        """As many arrivals are expected between two of a device as between two that come at a constant rate."""
        seconds, passed = self._passed
        expected = _through(before_s, seconds, passed) - np.log1p(-chance) * of / self.rate_per_s
        unknown = np.zeros_like(devices)
        return NextRequests(_through(expected, passed, seconds), np.full(len(devices), -np.inf), unknown, unknown)

    def at_rate(self, rate_per_s: float) -> Self:
        return replace(self, rate_per_s=rate_per_s)

    @cached_property
    def _passed(self) -> tuple[Floats, Floats]:
        """Seconds, and how many of them it would have taken at the mean rate to so many arrivals."""
        seconds, rates = self.cycle()
        arrived = np.concatenate([[0.0], np.cumsum(rates * np.diff(seconds))])
        return seconds, arrived * (seconds[-1] / arrived[-1])


@dataclass(frozen=True)
class Waves(VaryingRate):
    """The rate swings by the share `swing` around its mean, once in `period_s`."""

    period_s: float = 120.0
    swing: float = 0.8

    def __post_init__(self) -> None:
        VaryingRate.__post_init__(self)
        require(self.period_s > 0, f"the period must be above 0 seconds, not {self.period_s:g}")
        require(0 <= self.swing <= 1, f"swing is a share from 0 to 1, not {self.swing:g}")

    def cycle(self) -> tuple[Floats, Floats]:
        middle = (np.arange(POINTS) + 0.5) / POINTS
        return np.linspace(0.0, self.period_s, POINTS + 1), 1 + self.swing * np.sin(2 * pi * middle)


@dataclass(frozen=True)
class Levels(VaryingRate):
    """The rate is drawn anew after every `span_s`, log-normal with a variation of `cv`; `spans` levels in turn."""

    span_s: float = 60.0
    cv: float = 1.0
    spans: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        VaryingRate.__post_init__(self)
        require(self.span_s > 0, f"a level must last more than 0 seconds, not {self.span_s:g}")
        require(self.cv >= 0, f"cv must not be negative, but is {self.cv:g}")
        require(self.spans >= 1, f"there must be at least 1 level, not {self.spans}")

    def cycle(self) -> tuple[Floats, Floats]:
        spread = log(1 + self.cv**2) ** 0.5
        rates: Floats = np.exp(spread * np.random.default_rng(self.seed).standard_normal(self.spans))
        seconds: Floats = np.arange(self.spans + 1, dtype=np.float64) * self.span_s
        return seconds, rates


def _through(at: Floats, of: Floats, to: Floats) -> Floats:
    """What belongs to `at` where one cycle takes `of` to `to`, both of the same length."""
    cycles, rest = np.divmod(at, of[-1])
    found: Floats = cycles * to[-1] + np.interp(rest, of, to)
    return found
