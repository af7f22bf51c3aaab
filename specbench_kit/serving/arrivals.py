"""When responses are asked for, and how long they are: closed loops, random arrivals, and recorded traces."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from specbench_kit.errors import SkitError


class Asked(NamedTuple):
    """A response that is asked for: when, and of which lengths in tokens where that is known."""

    at_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None


NEVER = Asked(inf)
Next = Callable[[float], Asked]
"""What a device does next, given when it finished its last response."""


class Arrivals(Protocol):
    """How the responses of all devices come about."""

    def of_device(self, device: int, devices: int, random: Random) -> Next:
        """What one of so many devices asks for, from its own random numbers."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """The next response is asked for `think_s` after the last, or after times of that mean where `exponential`.

    Devices start at random within the first `ramp_s` seconds.
    """

    think_s: float = 0.0
    ramp_s: float = 5.0
    exponential: bool = False

    def __post_init__(self) -> None:
        if self.think_s < 0 or self.ramp_s < 0:
            raise SkitError(f"think time and ramp must not be negative: {self.think_s} s, {self.ramp_s} s")

    def of_device(self, device: int, devices: int, random: Random) -> Next:
        begins_s = random.random() * self.ramp_s
        first = True

        def following(finished_s: float) -> Asked:
            nonlocal first
            if first:
                first = False
                return Asked(begins_s)
            thinks_s = random.expovariate(1 / self.think_s) if self.exponential and self.think_s else self.think_s
            return Asked(finished_s + thinks_s)

        return following


@dataclass(frozen=True, slots=True)
class Poisson:
    """Random arrivals, `rate_per_s` over all devices; one that finds its device busy waits there."""

    rate_per_s: float

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise SkitError(f"the arrival rate must be above 0 per second, not {self.rate_per_s}")

    def of_device(self, device: int, devices: int, random: Random) -> Next:
        now_s = 0.0

        def following(_finished_s: float) -> Asked:
            nonlocal now_s
            now_s += random.expovariate(self.rate_per_s / devices)
            return Asked(now_s)

        return following


@dataclass(frozen=True)
class Replayed:
    """Recorded arrivals, dealt to the devices in turn; with a device for each, none waits for another."""

    asked: tuple[Asked, ...]

    def of_device(self, device: int, devices: int, random: Random) -> Next:
        mine: Iterator[Asked] = iter(self.asked[device::devices])
        return lambda _finished_s: next(mine, NEVER)

    def scaled(self, factor: float) -> "Replayed":
        """The same requests at so many times the rate."""
        if not factor > 0:
            raise SkitError(f"the arrival rate can be scaled by a factor above 0, not {factor}")
        return Replayed(tuple(one._replace(at_s=one.at_s / factor) for one in self.asked))


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
_MOONCAKE = _Layout("timestamp", "input_length", "output_length", 1000.0)


def read_arrivals(path: Path, limit: int | None = None) -> Replayed:
    """The requests of a trace file, from its first arrival on: Mooncake's .jsonl, or a .csv with known columns.

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
    return Replayed(tuple(_from_zero(asked)))


def _from_zero(asked: Sequence[Asked]) -> Iterator[Asked]:
    ordered = sorted(asked, key=lambda one: one.at_s)
    return (one._replace(at_s=one.at_s - ordered[0].at_s) for one in ordered)


def _json_rows(lines: Any, path: Path) -> Iterator[Asked]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error
            yield _asked(row, _MOONCAKE, f"{path}:{number}")


def _csv_rows(lines: Any, path: Path) -> Iterator[Asked]:
    reader = csv.DictReader(lines)
    found = set(reader.fieldnames or ())
    layout = next((one for one in _CSV if {one.time, one.prompt, one.output} - {None} <= found), None)
    if layout is None:
        known = "; ".join(", ".join(filter(None, one[:3])) for one in _CSV)
        raise SkitError(f"{path} has the columns {', '.join(sorted(found)) or '(none)'}; known layouts: {known}")
    for row in reader:
        yield _asked(row, layout, f"{path}:{reader.line_num}")


def _asked(row: Any, layout: _Layout, place: str) -> Asked:
    try:
        at_s = float(row[layout.time]) / layout.per_second
        lengths = [None if name is None else int(row[name]) for name in (layout.prompt, layout.output)]
    except (KeyError, TypeError, ValueError) as error:
        raise SkitError(f"{place}: not a request with {', '.join(filter(None, layout[:3]))} ({error})") from error
    if not isfinite(at_s) or any(length is not None and length < 0 for length in lengths):
        raise SkitError(f"{place}: times and lengths must be numbers from 0 up")
    return Asked(at_s, *lengths)
