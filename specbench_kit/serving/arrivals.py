"""The arrival of requests: closed loops, random arrivals at a constant or a varying rate, and
recorded arrivals.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf, log, pi
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np

from specbench_kit.core.errors import require
from specbench_kit.core.foreign_file import FileReading
from specbench_kit.serving.arrays import Floats, Integers

POINTS = 256
"""Pieces of constant rate that make up one wave."""
CLOSED_DEVICES = 16
"""Devices of a closed loop, unless something else is asked for."""
OPEN_DEVICES = 1024
DEVICES_PER_REQUEST = 2
"""Devices of random arrivals: at least so many, and so many for each request, so that hardly one is
still busy.
"""


class RequestArrival(NamedTuple):
    """One request: its time of arrival, and its lengths in tokens where they are known."""

    at_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class NextRequests(NamedTuple):
    """The next request of each of several devices, as arrays [devices].

    A request starts at `at_s`, or `gap_s` after the end of the device's previous response if that
    is later. `at_s` is infinite if no request comes any more, and minus infinite if only the gap
    counts. Unknown lengths are 0.
    """

    at_s: Floats
    gap_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers


class ArrivalProcess(Protocol):
    """A process that generates the requests of all devices; `is_open` ones do not wait for earlier
    answers.
    """

    is_open: ClassVar[bool] = True

    @property
    def states_lengths(self) -> bool:
        """Return True if requests come with output lengths of their own."""
        return False

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        """Return request `number` (from 0 on) of each of the `devices`, out of `count` devices in
        all.

        `previous_s` is the arrival of the device's previous request (0 before the first), `uniform` one random number
        per request.
        """

    def devices_for(self, duration_s: float) -> int:
        """Return how many devices the requests of so many seconds need, so that none waits for a
        device.
        """

    def at_rate(self, rate_per_s: float) -> "ArrivalProcess":
        """Return the same process at another rate; a closed loop has no rate of its own and stays
        as it is.
        """


@dataclass(frozen=True, slots=True)
class ClosedLoop(ArrivalProcess):
    """Devices that request again `think_s` seconds after each response; `exponential` draws
    thinking times.

    Devices start at random within the first `ramp_s` seconds. After a share `leave` of the
    responses a device goes away, and comes back after an exponential time of `away_s` seconds on
    average in place of thinking.
    """

    think_s: float = 0.0
    ramp_s: float = 5.0
    exponential: bool = False
    leave: float = 0.0
    away_s: float = 0.0
    is_open: ClassVar[bool] = False

    def __post_init__(self) -> None:
        not_negative = self.think_s >= 0 and self.ramp_s >= 0
        require(
            not_negative,
            f"think time and ramp must not be negative: {self.think_s} s, {self.ramp_s} s",
        )
        require(0 <= self.leave <= 1, f"leave is a share of responses, 0 to 1, not {self.leave:g}")
        require(
            0 <= self.away_s < inf and (self.leave > 0) == (self.away_s > 0),
            "devices leave after a share of responses for some time: give both, such as leave=0.05,away_s=60",
        )

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        first = number == 0
        # One random number decides whether a device leaves, and what is left of it how long it is
        # gone or thinks.
        leaves = uniform < self.leave
        left = np.where(
            leaves,
            uniform / (self.leave or 1.0),
            (uniform - self.leave) / ((1 - self.leave) or 1.0),
        )
        thinks_s = -np.log1p(-left) * self.think_s if self.exponential else self.think_s
        thinks_s = np.where(leaves, -np.log1p(-left) * self.away_s, thinks_s)
        unknown = np.zeros_like(devices)
        at_s = np.where(first, uniform * self.ramp_s, -inf)
        gap_s = np.where(first, -inf, thinks_s)
        return NextRequests(at_s, gap_s, unknown, unknown)

    def devices_for(self, duration_s: float) -> int:
        return CLOSED_DEVICES

    def at_rate(self, rate_per_s: float) -> "ClosedLoop":
        return self


@dataclass(frozen=True, slots=True)
class Poisson(ArrivalProcess):
    """Poisson arrivals, `rate_per_s` over all devices; a request whose device is busy waits
    there.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        require(
            self.rate_per_s > 0,
            f"the arrival rate must be above 0 per second, not {self.rate_per_s}",
        )

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        unknown = np.zeros_like(devices)
        at_s = previous_s - np.log1p(-uniform) * count / self.rate_per_s
        return NextRequests(at_s, np.full(len(devices), -inf), unknown, unknown)

    def devices_for(self, duration_s: float) -> int:
        return _devices_at_rate(self.rate_per_s, duration_s)

    def at_rate(self, rate_per_s: float) -> "Poisson":
        return Poisson(rate_per_s)


@dataclass(frozen=True)
class VaryingRate(ArrivalProcess):
    """Random arrivals with a mean of `rate_per_s` over all devices, whose rate repeats one cycle
    over and over.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        require(
            self.rate_per_s > 0,
            f"the arrival rate must be above 0 per second, not {self.rate_per_s:g}",
        )

    @abstractmethod
    def cycle(self) -> tuple[Floats, Floats]:
        """Return the edges of one cycle in seconds [n + 1], from 0 on, and the relative rate
        between them [n].
        """

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        # Time is warped so that the arrivals become a Poisson process at the mean rate, and the
        # result warped back.
        seconds, warped_s = self._warp
        arrival_s = (
            _interpolate(previous_s, seconds, warped_s)
            - np.log1p(-uniform) * count / self.rate_per_s
        )
        unknown = np.zeros_like(devices)
        at_s = _interpolate(arrival_s, warped_s, seconds)
        return NextRequests(at_s, np.full(len(devices), -np.inf), unknown, unknown)

    def devices_for(self, duration_s: float) -> int:
        return _devices_at_rate(self.rate_per_s, duration_s)

    def at_rate(self, rate_per_s: float) -> Self:
        return replace(self, rate_per_s=rate_per_s)

    @cached_property
    def _warp(self) -> tuple[Floats, Floats]:
        """Return the edges of a cycle, and the times at which the mean rate would reach as many
        arrivals.
        """
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
    """A rate that is drawn anew every `span_s` seconds, log-normal with variation `cv`; a cycle has
    `spans` levels.
    """

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
        rates: Floats = np.exp(
            deviation * np.random.default_rng(self.seed).standard_normal(self.spans)
        )
        seconds: Floats = np.arange(self.spans + 1, dtype=np.float64) * self.span_s
        return seconds, rates


def _devices_at_rate(rate_per_s: float, duration_s: float) -> int:
    return max(OPEN_DEVICES, ceil(DEVICES_PER_REQUEST * rate_per_s * duration_s))


def _interpolate(values: Floats, source: Floats, target: Floats) -> Floats:
    """Return what belongs to `values` where each cycle of `source` corresponds to one cycle of
    `target`.
    """
    cycles, offset = np.divmod(values, source[-1])
    mapped: Floats = cycles * target[-1] + np.interp(offset, source, target)
    return mapped


@dataclass(frozen=True)
class ReplayedArrivals(ArrivalProcess):
    """Recorded arrivals, dealt to the devices in turn; with one device per request, none waits for
    another.

    `reading` says what their file was taken for, if they come from one.
    """

    requests: tuple[RequestArrival, ...]
    reading: FileReading | None = field(default=None, compare=False)

    @property
    def states_lengths(self) -> bool:
        return any(request.output_tokens for request in self.requests)

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        at_s, prompts, outputs = self._columns
        index = np.minimum(devices + number * count, len(self.requests))
        return NextRequests(
            at_s[index], np.full(len(devices), -inf), prompts[index], outputs[index]
        )

    @cached_property
    def _columns(self) -> tuple[Floats, Integers, Integers]:
        """Return times and lengths; the last entry stands for all requests behind the trace, which
        never come.
        """
        return (
            np.array([*(request.at_s for request in self.requests), inf]),
            np.array([*(request.prompt_tokens or 0 for request in self.requests), 0]),
            np.array([*(request.output_tokens or 0 for request in self.requests), 0]),
        )

    def devices_for(self, duration_s: float) -> int:
        return max(1, sum(request.at_s < duration_s for request in self.requests))

    def at_rate(self, rate_per_s: float) -> "ReplayedArrivals":
        duration_s = self.requests[-1].at_s
        require(duration_s > 0, "arrivals that all come at once have no rate that could be changed")
        return self.scaled(rate_per_s * duration_s / len(self.requests))

    def scaled(self, factor: float) -> "ReplayedArrivals":
        """Return the same requests at `factor` times the rate."""
        require(factor > 0, f"the arrival rate can be scaled by a factor above 0, not {factor}")
        requests = tuple(request._replace(at_s=request.at_s / factor) for request in self.requests)
        return replace(self, requests=requests)


def from_zero(requests: Sequence[RequestArrival]) -> ReplayedArrivals:
    """Return the requests in order of arrival, with the first one at 0 s."""
    ordered = sorted(requests, key=lambda request: request.at_s)
    first_s = ordered[0].at_s
    return ReplayedArrivals(
        tuple(request._replace(at_s=request.at_s - first_s) for request in ordered)
    )
