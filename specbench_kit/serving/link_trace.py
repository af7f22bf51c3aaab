"""Recorded links: round trip and bandwidth over time, from a file."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TextIO

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import whole_number
from specbench_kit.serving.arrays import Floats

COLUMNS = ("time_s", "rtt_s", "bytes_per_s")


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """Round trip and bytes per second in either direction, from every `time_s` to the next; repeats from the start.

    Arrays [rows]. The last row lasts as long as the one before it. Messages wait while there are 0 bytes per second.
    """

    time_s: Floats
    rtt_s: Floats
    bytes_per_s: Floats

    def transfer_s(self, size: Floats, at_s: Floats) -> Floats:
        """Return the seconds of messages of `size` bytes that are sent at `at_s`: half a round trip, and the bytes."""
        at_s = np.where(at_s < inf, at_s, 0.0)
        row = np.searchsorted(self._edges_s, at_s % self.duration_s, side="right") - 1
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
        return np.concatenate([[0.0], np.cumsum(self.bytes_per_s * np.diff(self._edges_s))])


def read_link_trace(path: Path) -> LinkTrace:
    """Return the link trace in a .csv or .jsonl file with `time_s`, `rtt_s` and `bytes_per_s`."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_numbers(row, location) for row, location in _rows(file, path)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(f"cannot read the link trace {path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise SkitError(f"the link trace {path} holds no row: it needs {', '.join(COLUMNS)}")
    time_s, rtt_s, bytes_per_s = np.array(rows).T
    if (np.diff(time_s) <= 0).any() or not bytes_per_s.any():
        raise SkitError(f"the link trace {path}: times must rise, and not every row may have 0 bytes per second")
    return LinkTrace(time_s, rtt_s, bytes_per_s)


def _rows(lines: TextIO, path: Path) -> Iterator[tuple[Mapping[str, str | float], str]]:
    if path.suffix != ".jsonl":
        reader = csv.DictReader(lines)
        yield from ((row, f"{path}:{reader.line_num}") for row in reader)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line, parse_int=whole_number), f"{path}:{number}"
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error


def _numbers(row: Mapping[str, str | float], location: str) -> list[float]:
    try:
        numbers = [float(row[name]) for name in COLUMNS]
    except (KeyError, TypeError, ValueError) as error:
        raise SkitError(f"{location}: not a row with {', '.join(COLUMNS)} ({error})") from error
    if not all(0 <= number < inf for number in numbers):
        raise SkitError(f"{location}: {', '.join(COLUMNS)} must be numbers from 0 up")
    return numbers
