"""Trace files of request arrivals: Azure LLM inference, BurstGPT, Mooncake, LLMServingSim, or timestamps alone."""

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TextIO

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import whole_number
from specbench_kit.serving.arrivals import ReplayedArrivals, RequestArrival, from_zero


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
