"""When responses are asked for, and how long they are: closed loops, random arrivals, and recorded traces."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.counter_rng import Floats, Integers


class RequestArrival(NamedTuple):
    """A response that is asked for: when, and of which lengths in tokens where that is known."""

    at_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class NextRequests(NamedTuple):
    """The next response of each of several devices, as arrays [devices].

    It is asked for at `at_s`, or `gap_s` after the device's last one has ended where that is later; infinity is never,
    and minus infinity whatever the time. Of lengths, 0 is one that is not known.
    """

    at_s: Floats
    gap_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers


class ArrivalProcess(Protocol):
    """How the responses of all devices come about; `is_open`: at a rate of their own, whatever was answered."""

    is_open: ClassVar[bool] = True

    def ask(self, devices: Integers, of: int, number: Integers, before_s: Floats, chance: Floats) -> NextRequests:
        """The responses with these numbers, from 0 on, of some devices out of `of`.

        `before_s` is when the one before was asked for, 0 before the first; `chance` a random number for each.
        """

    def at_rate(self, rate_per_s: float) -> "ArrivalProcess":
        """The same at so many requests per second; a closed loop has no rate of its own and stays as it is."""


@dataclass(frozen=True, slots=True)
class ClosedLoop(ArrivalProcess):
    """The next response is asked for `think_s` after the last, or after times of that mean where `exponential`.

    Devices start at random within the first `ramp_s` seconds.
    """

    think_s: float = 0.0
    ramp_s: float = 5.0
    exponential: bool = False
    is_open: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.think_s < 0 or self.ramp_s < 0:
            raise SkitError(f"think time and ramp must not be negative: {self.think_s} s, {self.ramp_s} s")

    def ask(self, devices: Integers, of: int, number: Integers, before_s: Floats, chance: Floats) -> NextRequests:
        first = number == 0
        thinks_s = -np.log1p(-chance) * self.think_s if self.exponential else self.think_s
        unknown = np.zeros_like(devices)
        return NextRequests(
            np.where(first, chance * self.ramp_s, -inf), np.where(first, -inf, thinks_s), unknown, unknown
        )

    def at_rate(self, rate_per_s: float) -> "ClosedLoop":
        return self


@dataclass(frozen=True, slots=True)
class Poisson(ArrivalProcess):
    """Random arrivals, `rate_per_s` over all devices; one that finds its device busy waits there."""

    rate_per_s: float

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise SkitError(f"the arrival rate must be above 0 per second, not {self.rate_per_s}")

    def ask(self, devices: Integers, of: int, number: Integers, before_s: Floats, chance: Floats) -> NextRequests:
        unknown = np.zeros_like(devices)
        at_s = before_s - np.log1p(-chance) * of / self.rate_per_s
        return NextRequests(at_s, np.full(len(devices), -inf), unknown, unknown)

    def at_rate(self, rate_per_s: float) -> "Poisson":
        return Poisson(rate_per_s)


@dataclass(frozen=True)
class ReplayedArrivals(ArrivalProcess):
    """Recorded arrivals, dealt to the devices in turn; with a device for each, none waits for another."""

    asked: tuple[RequestArrival, ...]

    def ask(self, devices: Integers, of: int, number: Integers, before_s: Floats, chance: Floats) -> NextRequests:
        at_s, prompts, outputs = self._columns
        place = np.minimum(devices + number * of, len(self.asked))
        return NextRequests(at_s[place], np.full(len(devices), -inf), prompts[place], outputs[place])

    @cached_property
    def _columns(self) -> tuple[Floats, Integers, Integers]:
        """Times and lengths; the last entry is what comes after all of them, which is never."""
        at_s = np.array([*(one.at_s for one in self.asked), inf])
        prompts, outputs = (
            np.array([*(getattr(one, name) or 0 for one in self.asked), 0])
            for name in ("prompt_tokens", "output_tokens")
        )
        return at_s, prompts, outputs

    def at_rate(self, rate_per_s: float) -> "ReplayedArrivals":
        lasted_s = self.asked[-1].at_s
        if not lasted_s:
            raise SkitError("arrivals that all come at once have no rate that could be changed")
        return self.scaled(rate_per_s * lasted_s / len(self.asked))

    def scaled(self, factor: float) -> "ReplayedArrivals":
        """The same requests at so many times the rate."""
        if not factor > 0:
            raise SkitError(f"the arrival rate can be scaled by a factor above 0, not {factor}")
        return ReplayedArrivals(tuple(one._replace(at_s=one.at_s / factor) for one in self.asked))


class _Layout(NamedTuple):
    """Names of a file's columns, and how many of its time units make a second."""

    time: str
    prompt: str | None
    output: str | None
    per_second: float = 1.0


_CSV = (
    _Layout("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    _Layout("Timestamp", "Request tokens", "Response tokens"),
    _Layout("Timestamp", None, None),
    _Layout("timestamp", None, None),
)
"""Azure LLM inference 2023, BurstGPT, and timestamps alone."""
_JSON = (
    _Layout("timestamp", "input_length", "output_length", 1000.0),
    _Layout("arrival_time", "input_toks", "output_toks"),
)
"""Mooncake, and logs of serving engines by LLMServingSim."""


def read_arrivals(path: Path, limit: int | None = None) -> ReplayedArrivals:
    """The requests of a trace file, from its first arrival on: a .jsonl or .csv with known names.

    Those without a prompt or an answer, which traces keep of failures, are passed over.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = _json_rows(file, path) if path.suffix == ".jsonl" else _csv_rows(file, path)
            asked = list(islice((one for one in rows if 0 not in one[1:]), limit))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(f"cannot read the arrivals {path}: {getattr(error, 'strerror', None) or error}") from error
    if not asked:
        raise SkitError(f"the trace {path} holds no request: choose another file")
    return ReplayedArrivals(tuple(_from_zero(asked)))


def _from_zero(asked: Sequence[RequestArrival]) -> Iterator[RequestArrival]:
    ordered = sorted(asked, key=lambda one: one.at_s)
    return (one._replace(at_s=one.at_s - ordered[0].at_s) for one in ordered)


def _json_rows(lines: Any, path: Path) -> Iterator[RequestArrival]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error
            layout = next((one for one in _JSON if isinstance(row, dict) and one.time in row), _JSON[0])
            yield _asked(row, layout, f"{path}:{number}")


def _csv_rows(lines: Any, path: Path) -> Iterator[RequestArrival]:
    reader = csv.DictReader(lines)
    found = set(reader.fieldnames or ())
    layout = next((one for one in _CSV if {one.time, one.prompt, one.output} - {None} <= found), None)
    if layout is None:
        known = "; ".join(", ".join(filter(None, one[:3])) for one in _CSV)
        raise SkitError(f"{path} has the columns {', '.join(sorted(found)) or '(none)'}; known layouts: {known}")
    for row in reader:
        yield _asked(row, layout, f"{path}:{reader.line_num}")


def _asked(row: Any, layout: _Layout, place: str) -> RequestArrival:
    try:
        at_s = float(row[layout.time]) / layout.per_second
        lengths = [None if name is None else int(row[name]) for name in (layout.prompt, layout.output)]
    except (KeyError, TypeError, ValueError) as error:
        raise SkitError(f"{place}: not a request with {', '.join(filter(None, layout[:3]))} ({error})") from error
    if not isfinite(at_s) or any(length is not None and length < 0 for length in lengths):
        raise SkitError(f"{place}: times and lengths must be numbers from 0 up")
    return RequestArrival(at_s, *lengths)
