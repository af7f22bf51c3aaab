"""Logs of real servers: the arrival, the first and the last token, and the lengths of every
request.

A log is an engine's own, or the file of a benchmark that was run against a server.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import FAILED, FileReading
from specbench_kit.core.typed_json import whole_number
from specbench_kit.datasets.base import Row
from specbench_kit.studies.ab.imports.base import ResultFile, reading_of, recognised

LEAST_REQUESTS = 30
"""The least number of requests of which a third says something about a server."""


class LoggedRequest(NamedTuple):
    """One request: seconds of its arrival, of its first and of its last token, and its lengths in
    tokens.
    """

    at_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int


class _Columns(NamedTuple):
    """The columns of one kind of log, whose units of time make `per_s` to a second."""

    at: str
    first: str
    last: str
    prompt: str
    output: str
    per_s: float = 1.0


_ROWS = {
    "a log by LLMServingSim, times in seconds": _Columns(
        "queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks"
    ),
    "a BLIS trace, times in microseconds": _Columns(
        "send_time_us",
        "first_chunk_time_us",
        "last_chunk_time_us",
        "input_tokens",
        "output_tokens",
        1e6,
    ),
}
FORMATS = (
    "LLMServingSim (queued_ts, first_token_ts, ...), BLIS (send_time_us, ...), AIPerf's profile_export.jsonl, "
    "GenAI-Perf's profile_export.json, GuideLLM's benchmarks.json, or vLLM's and SGLang's details with start_times"
)


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The finished requests of a log, from its first arrival on, and what its file was taken for.

    `notes` are lines that a reader of the numbers must know.
    """

    requests: Sequence[LoggedRequest]
    reading: FileReading
    notes: Sequence[str] = ()


def read_log(path: Path) -> ServerLog:
    """Return the finished requests of a log; raise SkitError with file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SkitError(
            f"cannot read the log {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    kind = recognised(path, text)
    log = _engine_log(text, path) if kind is None else _load(kind, text, path)
    # A request without any token has no time per token.
    finished = sorted(
        request for request in log.requests if request.prompt_tokens and request.output_tokens
    )
    if len(finished) < LEAST_REQUESTS:
        raise SkitError(
            f"the log {path} holds {len(finished)} finished requests, of at least {LEAST_REQUESTS} that a calibration "
            f"needs; record a longer one ({log.reading.line})"
        )
    zero_s = finished[0].at_s
    moved = [
        request._replace(
            at_s=request.at_s - zero_s,
            first_s=request.first_s - zero_s,
            last_s=request.last_s - zero_s,
        )
        for request in finished
    ]
    return replace(log, requests=moved)


def _load(kind: ResultFile, text: str, path: Path) -> ServerLog:
    """Return the answers of a load generator's file, which must hold a single load."""
    try:
        results = kind.read(path, text)
    except ValueError as error:
        raise SkitError(f"the log {path} is of {kind.tool}: {error}") from error
    if len(results.loads) != 1:
        raise SkitError(
            f"the log {path} holds {len(results.loads)} loads of {kind.tool}: keep one in the file"
        )
    (load,) = results.loads
    if not load.states_starts:
        raise SkitError(
            f"the log {path} holds no start_times, without which its load cannot be replayed: "
            "use a version of the benchmark that writes them"
        )
    requests = [
        LoggedRequest(
            entry.sent_s,
            entry.sent_s + entry.answer.ttft_s,
            entry.sent_s + entry.answer.e2e_s,
            entry.answer.prompt_tokens or 0,
            entry.answer.tokens,
        )
        for entry in load.answers
        if entry.answer is not None
    ]
    return ServerLog(requests, reading_of(path, kind, results), results.notes)


def _engine_log(text: str, path: Path) -> ServerLog:
    """Return the requests of a CSV file, or of a file with a JSON object per line, that an engine
    wrote.
    """
    rows = _csv_rows(text, path) if path.suffix == ".csv" else _json_rows(text, path)
    requests = []
    failed = 0
    taken_for = ""
    for row, location in rows:
        taken_for = taken_for or _name(row, location)
        if row.get("status", "ok") == "ok":
            requests.append(_request(row, _ROWS[taken_for], location))
        else:
            failed += 1
    reading = FileReading(
        path.name, taken_for or "an empty log", len(requests), left_out={FAILED: failed}
    )
    return ServerLog(requests, reading)


def _json_rows(text: str, path: Path) -> Iterator[tuple[Row, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            location = f"{path}:{number}"
            try:
                row = json.loads(line, parse_int=whole_number)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{location}: not valid JSON ({error})") from error
            if not isinstance(row, dict):
                raise SkitError(
                    f"{location}: not a request, but {type(row).__name__}; known logs: {FORMATS}"
                )
            yield row, location


def _csv_rows(text: str, path: Path) -> Iterator[tuple[Row, str]]:
    for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
        yield row, f"{path}:{number}"


def _name(row: Row, location: str) -> str:
    """Return whose log has rows like this one."""
    name = next((name for name, columns in _ROWS.items() if columns.at in row), None)
    if name is None:
        raise SkitError(f"{location}: not a request of a known log: {FORMATS}")
    return name


def _request(row: Row, columns: _Columns, label: str) -> LoggedRequest:
    try:
        times = [
            float(str(row[name])) / columns.per_s
            for name in (columns.at, columns.first, columns.last)
        ]
        lengths = [int(str(row[name])) for name in (columns.prompt, columns.output)]
    except (KeyError, ValueError) as error:
        raise SkitError(
            f"{label}: {columns.at} and the columns beside it are needed as numbers ({error})"
        ) from error
    if not all(map(isfinite, times)) or times != sorted(times):
        raise SkitError(f"{label}: arrival, first and last token must be times in this order")
    if min(lengths) < 0:
        raise SkitError(f"{label}: lengths must not be negative")
    return LoggedRequest(times[0], times[1], times[2], lengths[0], lengths[1])
