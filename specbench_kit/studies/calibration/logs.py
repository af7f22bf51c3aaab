"""Logs of real servers: the arrival, the first and the last token, and the lengths of every request.

A log is an engine's own, or the file of a benchmark that was run against a server.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject, convert

LEAST_REQUESTS = 30
"""The least number of requests of which a third says something about a server."""
Seconds = Annotated[float, Meta(ge=0)]
Tokens = Annotated[int, Meta(ge=0)]


class LoggedRequest(NamedTuple):
    """One request: seconds of its arrival, of its first and of its last token, and its lengths in tokens."""

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


_ROWS = (
    _Columns("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks"),
    _Columns("send_time_us", "first_chunk_time_us", "last_chunk_time_us", "input_tokens", "output_tokens", 1e6),
    _Columns("request_start_time", "first_token_time", "last_token_time", "prompt_tokens", "output_tokens"),
    _Columns("start_time", "first_token_time", "last_token_time", "prompt_tokens", "output_tokens"),
)
"""Engine logs by LLMServingSim, BLIS traces, and GuideLLM's requests, of newer and of older versions."""


class _Detailed(Struct):
    """The file of `vllm bench serve --save-detailed`, or of SGLang's benchmark with its details."""

    start_times: list[float]
    ttfts: list[Seconds]
    itls: list[list[Seconds]]
    input_lens: list[Tokens]
    output_lens: list[Tokens]
    errors: list[str] = []


class _Value(Struct):
    value: Seconds
    unit: str = "ms"


class _AiperfMetrics(Struct):
    time_to_first_token: _Value
    request_latency: _Value
    input_sequence_length: _Value
    output_sequence_length: _Value


class _AiperfTimes(Struct):
    request_start_ns: int


class _AiperfRecord(Struct):
    metadata: _AiperfTimes
    metrics: _AiperfMetrics


FORMATS = (
    "LLMServingSim (queued_ts, first_token_ts, ...), BLIS (send_time_us, ...), AIPerf's profile_export.jsonl, "
    "GuideLLM's benchmarks.json, or vLLM's and SGLang's details with start_times"
)


def read_log(path: Path) -> list[LoggedRequest]:
    """Return the finished requests of a log, from its first arrival on; raise SkitError with file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SkitError(f"cannot read the log {path}: {getattr(error, 'strerror', None) or error}") from error
    requests = sorted(_csv_rows(text, path) if path.suffix == ".csv" else _json(text, path))
    # A request without any token has no time per token, and one that failed has no times at all.
    finished = [request for request in requests if request.prompt_tokens and request.output_tokens]
    if len(finished) < LEAST_REQUESTS:
        raise SkitError(
            f"the log {path} holds {len(finished)} finished requests, of at least {LEAST_REQUESTS} that a calibration "
            "needs; record a longer one"
        )
    zero_s = finished[0].at_s
    return [
        request._replace(at_s=request.at_s - zero_s, first_s=request.first_s - zero_s, last_s=request.last_s - zero_s)
        for request in finished
    ]


def _json(text: str, path: Path) -> Iterator[LoggedRequest]:
    """Yield the requests of a JSON document, or of a file with one JSON object per line."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and "benchmarks" in document:
        yield from _guidellm(document, path)
    elif isinstance(document, dict) and "ttfts" in document:
        yield from _detailed(document, f"the log {path}")
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield from _line(line, f"{path}:{number}")


def _line(line: str, label: str) -> Iterator[LoggedRequest]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SkitError(f"{label}: not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise SkitError(f"{label}: not a request, but {type(row).__name__}; known logs: {FORMATS}")
    if "ttfts" in row:
        yield from _detailed(row, label)
    elif "metadata" in row and "metrics" in row:
        if row.get("error") is None:
            yield _aiperf(row, label)
    else:
        yield _request(row, label)


def _detailed(document: JsonObject, label: str) -> Iterator[LoggedRequest]:
    if not document.get("start_times"):
        raise SkitError(
            f"{label} holds no start_times, without which its load cannot be replayed: "
            "use a version of the benchmark that writes them"
        )
    try:
        runs = convert(_Detailed, document)
        errors = runs.errors or [""] * len(runs.ttfts)
        rows = zip(runs.start_times, runs.ttfts, runs.itls, runs.input_lens, runs.output_lens, errors, strict=True)
        for at_s, ttft_s, gaps_s, prompt, output, error in rows:
            if not error and ttft_s > 0:
                yield LoggedRequest(at_s, at_s + ttft_s, at_s + ttft_s + sum(gaps_s), prompt, output)
    except ValueError as problem:
        raise SkitError(f"{label}: not the details of a benchmark of vLLM or SGLang ({problem})") from problem


def _aiperf(row: JsonObject, label: str) -> LoggedRequest:
    try:
        record = convert(_AiperfRecord, row)
    except ValueError as error:
        raise SkitError(f"{label}: not a record of AIPerf ({error})") from error
    at_s = record.metadata.request_start_ns / 1e9
    metrics = record.metrics
    first_s, last_s = (
        at_s + value.value / {"ns": 1e9, "us": 1e6, "ms": 1e3}.get(value.unit, 1.0)
        for value in (metrics.time_to_first_token, metrics.request_latency)
    )
    lengths = (metrics.input_sequence_length.value, metrics.output_sequence_length.value)
    return LoggedRequest(at_s, first_s, last_s, *map(int, lengths))


def _guidellm(document: JsonObject, path: Path) -> Iterator[LoggedRequest]:
    """Yield the successful requests of every benchmark, one after the other, since each is a load of its own."""
    benchmarks = document["benchmarks"]
    if not isinstance(benchmarks, list) or len(benchmarks) != 1:
        raise SkitError(f"the log {path} holds several loads of GuideLLM: keep one benchmark in the file")
    try:
        rows: Sequence[Mapping[str, object]] = benchmarks[0]["requests"]["successful"]
    except (KeyError, TypeError) as error:
        raise SkitError(f"the log {path} is of GuideLLM, but without its requests ({error})") from error
    for number, row in enumerate(rows, 1):
        yield _request(row, f"{path}, request {number}")


def _csv_rows(text: str, path: Path) -> Iterator[LoggedRequest]:
    for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
        if row.get("status", "ok") == "ok":
            yield _request(row, f"{path}:{number}")


def _request(row: Mapping[str, object], label: str) -> LoggedRequest:
    columns = next((columns for columns in _ROWS if columns.at in row), None)
    if columns is None:
        raise SkitError(f"{label}: not a request of a known log: {FORMATS}")
    try:
        times = [float(str(row[name])) / columns.per_s for name in (columns.at, columns.first, columns.last)]
        lengths = [int(str(row[name])) for name in (columns.prompt, columns.output)]
    except (KeyError, ValueError) as error:
        raise SkitError(f"{label}: {columns.at} and the columns beside it are needed as numbers ({error})") from error
    if not all(map(isfinite, times)) or times != sorted(times):
        raise SkitError(f"{label}: arrival, first and last token must be times in this order")
    if min(lengths) < 0:
        raise SkitError(f"{label}: lengths must not be negative")
    return LoggedRequest(times[0], times[1], times[2], lengths[0], lengths[1])
