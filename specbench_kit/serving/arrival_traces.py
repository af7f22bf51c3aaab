"""Trace files of request arrivals: Azure LLM inference, BurstGPT, Mooncake, LLMServingSim, or timestamps alone.

Also here: random arrivals whose rate changes over time: in waves, or from level to level.
"""

import csv
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from math import isfinite, log, pi
from pathlib import Path
from typing import NamedTuple, Self, TextIO

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.typed_json import whole_number
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.arrivals import ArrivalProcess, NextRequests, ReplayedArrivals, RequestArrival, from_zero


class _Layout(NamedTuple):
    """Column names of one kind of file, and how many of its units of time make a second."""

    time: str
    prompt: str | None
    output: str | None
    units_per_s: float = 1.0

    @property
    def columns(self) -> list[str]:
        return [name for name in (self.time, self.prompt, self.output) if name]


_CSV = (
    _Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _Layout("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    _Layout("Timestamp", "Request tokens", "Response tokens"),
    _Layout("Timestamp", None, None),
    _Layout("timestamp", None, None),
)
"""Azure LLM inference 2023 and 2024 as published and as Vidur has it, BurstGPT, and timestamps alone."""
_JSON = (
    _Layout("timestamp", "input_length", "output_length", 1000.0),
    _Layout("arrival_time", "input_toks", "output_toks"),
)
"""Mooncake, and logs of serving engines by LLMServingSim."""


def read_arrivals(path: Path, limit: int | None = None) -> ReplayedArrivals:
    """Return the requests of a .jsonl or .csv trace with known columns, from its first arrival on.

    Requests without a prompt or an answer, which traces keep of failures, are skipped.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _json_rows(file, path) if path.suffix == ".jsonl" else _csv_rows(file, path)
            requests = list(islice((request for request in rows if 0 not in request[1:]), limit))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(f"cannot read the arrivals {path}: {getattr(error, 'strerror', None) or error}") from error
    if not requests:
        raise SkitError(f"the trace {path} holds no request: choose another file")
    return from_zero(requests)


def _json_rows(lines: TextIO, path: Path) -> Iterator[RequestArrival]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line, parse_int=whole_number)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error
            layout = next((layout for layout in _JSON if isinstance(row, dict) and layout.time in row), _JSON[0])
            yield _request(row, layout, f"{path}:{number}")


def _csv_rows(lines: TextIO, path: Path) -> Iterator[RequestArrival]:
    reader = csv.DictReader(lines)
    columns = set(reader.fieldnames or ())
    layout = next((layout for layout in _CSV if columns.issuperset(layout.columns)), None)
    if layout is None:
        layouts = "; ".join(", ".join(layout.columns) for layout in _CSV)
        raise SkitError(f"{path} has the columns {', '.join(sorted(columns)) or '(none)'}; known layouts: {layouts}")
    for row in reader:
        yield _request(row, layout, f"{path}:{reader.line_num}")


def _seconds(time: str | float) -> float:
    """Return a number as it is, and a date with a time of day as seconds since 1970, in UTC if it names no zone."""
    try:
        return float(time)
    except ValueError:
        moment = datetime.fromisoformat(str(time))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _request(row: Mapping[str, str | float], layout: _Layout, location: str) -> RequestArrival:
    try:
        at_s = _seconds(row[layout.time]) / layout.units_per_s
        lengths = [None if name is None else int(row[name]) for name in (layout.prompt, layout.output)]
    except (KeyError, TypeError, ValueError) as error:
        raise SkitError(f"{location}: not a request with {', '.join(layout.columns)} ({error})") from error
    if not isfinite(at_s) or any(length is not None and length < 0 for length in lengths):
        raise SkitError(f"{location}: times and lengths must be numbers from 0 up")
    return RequestArrival(at_s, *lengths)


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
