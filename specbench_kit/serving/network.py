"""What delays messages and verifications besides each device's own link: recorded links, shared links, the host."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, sqrt
from pathlib import Path
from random import Random
from typing import TextIO

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.typed_json import whole_number
from specbench_kit.deployments.base import Link
from specbench_kit.serving.arrays import Floats, Integers

COLUMNS = ("time_s", "rtt_s", "bytes_per_s")


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """Round trip and bytes per second in either direction, from every `time_s` to the next; repeats from the start.

    Arrays [rows]. The last row lasts as long as the one before it. Messages wait while there are 0 bytes per second.
    Where `bytes_per_s` is None, the recording is of round trips alone, and the devices' own links say how long the
    bytes take.
    """

    time_s: Floats
    rtt_s: Floats
    bytes_per_s: Floats | None = None

    def excess_s(self, size: Floats, at_s: Floats) -> Floats:
        """Return how much longer than at the mean round trip and bandwidth messages take that are sent at `at_s`."""
        if self.bytes_per_s is None:
            return (self.rtt_s[self._row(at_s)] - self.mean_rtt_s) / 2
        return self.transfer_s(size, at_s) - (self.mean_rtt_s / 2 + size / self.mean_bytes_per_s)

    def _row(self, at_s: Floats) -> Integers:
        at_s = np.where(at_s < inf, at_s, 0.0)
        row: Integers = np.searchsorted(self._edges_s, at_s % self.duration_s, side="right") - 1
        return row

    def transfer_s(self, size: Floats, at_s: Floats) -> Floats:
        """Return the seconds of messages of `size` bytes that are sent at `at_s`: half a round trip, and the bytes."""
        row = self._row(at_s)
        at_s = np.where(at_s < inf, at_s, 0.0)
        # Bytes that the link could have carried since 0 s grow with time; a message ends when they have grown by its
        # size, which is found by inverting that function.
        passes, offset_s = np.divmod(at_s, self.duration_s)
        carried = passes * self._carried_bytes[-1] + np.interp(offset_s, self._edges_s, self._carried_bytes)
        passes, offset = np.divmod(carried + size, self._carried_bytes[-1])
        end_s = passes * self.duration_s + np.interp(offset, self._carried_bytes, self._edges_s)
        seconds: Floats = self.rtt_s[row] / 2 + np.maximum(0.0, end_s - at_s)
        return seconds

    @property
    def mean_rtt_s(self) -> float:
        """Round trip, averaged over time."""
        return float(self.rtt_s @ np.diff(self._edges_s) / self.duration_s)

    @property
    def mean_bytes_per_s(self) -> float:
        """Bytes per second, averaged over time."""
        return float(self._carried_bytes[-1] / self.duration_s)

    @property
    def duration_s(self) -> float:
        """Seconds after which the trace repeats."""
        return float(self._edges_s[-1])

    @cached_property
    def _edges_s(self) -> Floats:
        from_zero: Floats = self.time_s - self.time_s[0]
        last_s = from_zero[-1] - from_zero[-2] if len(from_zero) > 1 else 1.0
        return np.append(from_zero, from_zero[-1] + last_s)

    @cached_property
    def _carried_bytes(self) -> Floats:
        assert self.bytes_per_s is not None
        return np.concatenate([[0.0], np.cumsum(self.bytes_per_s * np.diff(self._edges_s))])


def read_link_trace(path: Path) -> LinkTrace:
    """Return the recorded link in a .csv or .jsonl file.

    Columns are `rtt_s`, and, where they are known, `time_s` and `bytes_per_s`. Without times the samples are a second
    apart, as those of ping are. A file without names of columns holds round trips, or times and round trips.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(_rows(file, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(f"cannot read the link trace {path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise SkitError(f"the link trace {path} holds no row: it needs {', '.join(COLUMNS)}, or rtt_s alone")
    # The first row says which columns there are; a later row that lacks one is an error.
    names = [name for name in COLUMNS if name in rows[0][0] or name == "rtt_s"]
    columns = dict(zip(names, np.array([_numbers(row, names, location) for row, location in rows]).T, strict=True))
    trace = LinkTrace(columns.get("time_s", np.arange(len(rows), dtype=np.float64)), columns["rtt_s"])
    trace = replace(trace, bytes_per_s=columns.get("bytes_per_s"))
    if (np.diff(trace.time_s) <= 0).any() or (trace.bytes_per_s is not None and not trace.bytes_per_s.any()):
        raise SkitError(f"the link trace {path}: times must rise, and not every row may have 0 bytes per second")
    return trace


def _rows(lines: TextIO, path: Path) -> Iterator[tuple[Mapping[str, str | float], str]]:
    if path.suffix != ".jsonl":
        reader = csv.reader(lines)
        first = next(reader, [])
        named = not any(map(_is_number, first))
        names = [name.strip() for name in first] if named else list(COLUMNS if len(first) > 1 else ["rtt_s"])
        if not named:
            yield dict(zip(names, first, strict=False)), f"{path}:1"
        yield from ((dict(zip(names, row, strict=False)), f"{path}:{reader.line_num}") for row in reader if row)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line, parse_int=whole_number)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error
            require(isinstance(row, dict), f"{path}:{number}: not an object with {', '.join(COLUMNS)}")
            yield row, f"{path}:{number}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(row: Mapping[str, str | float], names: Sequence[str], location: str) -> list[float]:
    try:
        numbers = [float(row[name]) for name in names]
    except (KeyError, TypeError, ValueError) as error:
        raise SkitError(f"{location}: not a row with {', '.join(names)} ({error})") from error
    if not all(0 <= number < inf for number in numbers):
        raise SkitError(f"{location}: {', '.join(names)} must be numbers from 0 up")
    return numbers


@dataclass(frozen=True)
class Network:
    """Delays beyond those of the devices' own links.

    `trace`: all links follow this recording, each from a different position in it. `shared_up_bytes_per_s`: bandwidth
    of one more link behind the devices' own, which their messages to the server cross one after the other. `frame_s`:
    the server's time per message that it reads or writes, one after the other in each direction, in parallel to
    verifications. `turn_s`: fixed gap between two verifications, and `turn_answer_s` the gap added per answer of the
    previous batch. `answer_s`: extra verification time per answer of the previous batch that is still being sent; the
    latency model of the verifier was measured with one such answer per request of the batch.
    """

    trace: LinkTrace | None = None
    shared_up_bytes_per_s: float = inf
    frame_s: float = 0.0
    turn_s: float = 0.0
    turn_answer_s: float = 0.0
    answer_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.shared_up_bytes_per_s > 0:
            raise SkitError(f"--shared-uplink must be above 0 bytes per second, not {self.shared_up_bytes_per_s:g}")
        for name in ("frame_s", "turn_s", "turn_answer_s", "answer_s"):
            if not 0 <= (seconds := getattr(self, name)) < inf:
                raise SkitError(f"--{name.replace('_', '-')} takes seconds from 0 on, not {seconds:g}")

    @property
    def delays_messages(self) -> bool:
        """True if messages take longer than the devices' own links say."""
        return self.trace is not None or self.shared_up_bytes_per_s != inf or self.frame_s > 0

    def link(self, nominal: Link) -> Link:
        """Return a deployment's link as deadlines and reports count with it: at the means of the trace, if any."""
        if (trace := self.trace) is None:
            return nominal
        mean = replace(nominal, rtt_s=trace.mean_rtt_s, jitter_s=0.0)
        if trace.bytes_per_s is None:
            return mean
        return replace(mean, up_bytes_per_s=trace.mean_bytes_per_s, down_bytes_per_s=trace.mean_bytes_per_s)


NO_DELAYS = Network()


class ServerOverhead:
    """Adds what the processor takes to the isolated seconds of each verification."""

    def __init__(self, network: Network, verify_cv: float, seed: int | str) -> None:
        self._network = network
        self._previous_answers = 0
        self._previous_end_s = 0.0
        self._cv = verify_cv
        self._random = Random(f"{seed}/scatter")
        variance = log(1 + verify_cv**2)
        self._mean = -variance / 2
        self._deviation = sqrt(variance)
        self.free_s = 0.0
        """Time from which on the next verification may begin."""

    def verification_s(self, seconds: float, requests: int, now_s: float) -> float:
        """Return the duration of a verification of `requests` that starts at `now_s`.

        `seconds` is its isolated duration, which includes sending one answer per request.
        """
        if answer_s := self._network.answer_s:
            since_s = now_s - self._previous_end_s
            leaving = float(answers_leaving(self._previous_answers, since_s, self._network.frame_s))
            seconds += answer_s * (leaving - requests)
            require(
                seconds > 0,
                f"--answer-s {answer_s:g}: a verification of {requests} requests would take no time; its time includes "
                "one answer per request, so that an answer takes less",
            )
        if self._cv:
            seconds *= self._random.lognormvariate(self._mean, self._deviation)
        return seconds

    def restart(self, now_s: float) -> None:
        """Note that the server has stopped: it sends nothing any more."""
        self._previous_answers = 0
        self._previous_end_s = self.free_s = now_s

    def verification_ended(self, ended_s: float, answers: int) -> None:
        """Note the end of a verification and how many answers it has to send."""
        self._previous_answers = answers
        self._previous_end_s = ended_s
        self.free_s = ended_s + self._network.turn_s + self._network.turn_answer_s * answers


def answers_leaving(answers: Floats | float, since_s: Floats | float, frame_s: float) -> Floats:
    """Return how many of a batch's answers are still being sent `since_s` seconds after its end, `frame_s` each."""
    if not frame_s:
        return np.zeros_like(answers, dtype=np.float64)
    leaving: Floats = np.ceil(np.maximum(0.0, answers - since_s / frame_s))
    return leaving
