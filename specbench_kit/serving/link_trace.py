"""Links as they were recorded: round trip and bandwidth over time, from a file."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.counter_rng import Floats

COLUMNS = ("time_s", "rtt_s", "bytes_per_s")


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """Round trip and bytes per second, each way, from every `time_s` to the next; then it begins again.

    Arrays [rows]; the last row lasts as long as the one before it, and at 0 bytes per second messages wait.
    """

    time_s: Floats
    rtt_s: Floats
    bytes_per_s: Floats

    def message_s(self, size: Floats, at_s: Floats) -> Floats:
        """Seconds of messages of so many bytes that set out at some times: half a round trip, and their bytes."""
        at_s = np.where(at_s < inf, at_s, 0.0)
        row = np.searchsorted(self._edges_s, at_s % self.lasts_s, side="right") - 1
        passes, rest = np.divmod(self._crossed(at_s) + size, self._crossed_bytes[-1])
        there_s = passes * self.lasts_s + np.interp(rest, self._crossed_bytes, self._edges_s)
        seconds: Floats = self.rtt_s[row] / 2 + np.maximum(0.0, there_s - at_s)
        return seconds

    @property
    def mean_rtt_s(self) -> float:
        """Over time."""
        return float(self.rtt_s @ np.diff(self._edges_s) / self.lasts_s)

    @property
    def mean_bytes_per_s(self) -> float:
        """Over time."""
        return float(self._crossed_bytes[-1] / self.lasts_s)

    def _crossed(self, until_s: Floats) -> Floats:
        """Bytes that could have crossed by some times."""
        passes, rest_s = np.divmod(until_s, self.lasts_s)
        crossed: Floats = passes * self._crossed_bytes[-1] + np.interp(rest_s, self._edges_s, self._crossed_bytes)
        return crossed

    @property
    def lasts_s(self) -> float:
        """Seconds until it begins again."""
        return float(self._edges_s[-1])

    @cached_property
    def _edges_s(self) -> Floats:
        from_zero: Floats = self.time_s - self.time_s[0]
        last_s = from_zero[-1] - from_zero[-2] if len(from_zero) > 1 else 1.0
        return np.append(from_zero, from_zero[-1] + last_s)

    @cached_property
    def _crossed_bytes(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.bytes_per_s * np.diff(self._edges_s))])


def read_link_trace(path: Path) -> LinkTrace:
    """A .csv or .jsonl with `time_s`, `rtt_s` and `bytes_per_s`."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_numbers(row, place) for row, place in _rows(file, path)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(f"cannot read the link trace {path}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise SkitError(f"the link trace {path} holds no row: it needs {', '.join(COLUMNS)}")
    time_s, rtt_s, bytes_per_s = np.array(rows).T
    if (np.diff(time_s) <= 0).any() or not bytes_per_s.any():
        raise SkitError(f"the link trace {path}: times must rise, and not every row may have 0 bytes per second")
    return LinkTrace(time_s, rtt_s, bytes_per_s)


def _rows(lines: Any, path: Path) -> Iterator[tuple[Any, str]]:
    if path.suffix != ".jsonl":
        reader = csv.DictReader(lines)
        yield from ((row, f"{path}:{reader.line_num}") for row in reader)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line), f"{path}:{number}"
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error


def _numbers(row: Any, place: str) -> Sequence[float]:
    try:
        found = [float(row[name]) for name in COLUMNS]
    except (KeyError, TypeError, ValueError) as error:
        raise SkitError(f"{place}: not a row with {', '.join(COLUMNS)} ({error})") from error
    if not all(0 <= value < inf for value in found):
        raise SkitError(f"{place}: {', '.join(COLUMNS)} must be numbers from 0 up")
    return found
