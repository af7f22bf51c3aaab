"""Random arrivals whose rate changes over time: in waves, or from level to level."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, pi
from typing import Self

import numpy as np

from specbench_kit.core.errors import require
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.arrivals import ArrivalProcess, NextRequests

POINTS = 256
"""Pieces of constant rate that make up one wave."""


@dataclass(frozen=True)
class VaryingRate(ArrivalProcess):
    """Random arrivals with a mean of `rate_per_s` over all devices, whose rate repeats one cycle over and over."""

    rate_per_s: float

    def __post_init__(self) -> None:
        require(self.rate_per_s > 0, f"the arrival rate must be above 0 per second, not {self.rate_per_s:g}")

    @abstractmethod
    def cycle(self) -> tuple[Floats, Floats]:
        """Return the edges of one cycle in seconds [n + 1], from 0 on, and the relative rate between them [n]."""

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        # Time is warped so that the arrivals become a Poisson process at the mean rate, and the result warped back.
        seconds, warped_s = self._warp
        arrival_s = _interpolate(previous_s, seconds, warped_s) - np.log1p(-uniform) * count / self.rate_per_s
        unknown = np.zeros_like(devices)
        at_s = _interpolate(arrival_s, warped_s, seconds)
        return NextRequests(at_s, np.full(len(devices), -np.inf), unknown, unknown)

    def at_rate(self, rate_per_s: float) -> Self:
        return replace(self, rate_per_s=rate_per_s)

    @cached_property
    def _warp(self) -> tuple[Floats, Floats]:
        """Return the edges of a cycle, and the times at which the mean rate would reach as many arrivals."""
        seconds, rates = self.cycle()
        arrived = np.concatenate([[0.0], np.cumsum(rates * np.diff(seconds))])
        return seconds, arrived * (seconds[-1] / arrived[-1])


@dataclass(frozen=True)
class Waves(VaryingRate):
    """A rate that swings by the share `swing` around its mean, once in `period_s` seconds."""

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
    """A rate that is drawn anew every `span_s` seconds, log-normal with variation `cv`; a cycle has `spans` levels."""

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
        deviation = log(1 + self.cv**2) ** 0.5
        rates: Floats = np.exp(deviation * np.random.default_rng(self.seed).standard_normal(self.spans))
        seconds: Floats = np.arange(self.spans + 1, dtype=np.float64) * self.span_s
        return seconds, rates


def _interpolate(values: Floats, source: Floats, target: Floats) -> Floats:
    """Return what belongs to `values` where each cycle of `source` corresponds to one cycle of `target`."""
    cycles, offset = np.divmod(values, source[-1])
    mapped: Floats = cycles * target[-1] + np.interp(offset, source, target)
    return mapped
