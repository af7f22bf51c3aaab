"""NVIDIA AIPerf's `profile_export.jsonl`: one record per request."""

from itertools import accumulate
from pathlib import Path

from msgspec import Struct

from specbench_kit.core.typed_json import JsonObject, decode
from specbench_kit.studies.ab.imports.base import (
    ImportedAnswer,
    ImportedLoad,
    ResultFile,
    result_files,
    timed_answer,
)


class RequestIdentity(Struct):
    """Which request a record is about, and when it was sent."""

    request_start_ns: int
    session_num: int = 0
    turn_index: int | None = None
    conversation_id: str | None = None
    benchmark_phase: str = "profiling"


class MetricValue(Struct):
    """A metric that is one number."""

    value: float


class MetricValues(Struct):
    """A metric that is a number for each chunk."""

    value: list[float]


class RequestMetrics(Struct):
    """The metrics of a request, times in milliseconds; `ttft` is the name in older files."""

    request_latency: MetricValue | None = None
    time_to_first_token: MetricValue | None = None
    ttft: MetricValue | None = None
    inter_chunk_latency: MetricValues | None = None
    output_sequence_length: MetricValue | None = None
    input_sequence_length: MetricValue | None = None


class RequestLine(Struct):
    """A line of the file."""

    metadata: RequestIdentity
    metrics: RequestMetrics
    error: JsonObject | None = None


@result_files.register("aiperf")
class AIPerfRecords(ResultFile):
    """One load per file; a request is known by its conversation, or by its position where these are named at random."""

    tool = "AIPerf"
    note = "AIPerf records no outputs: they are not compared."

    def recognises(self, path: Path, content: str) -> bool:
        first = content.lstrip().partition("\n")[0]
        return '"metadata"' in first and '"request_start_ns"' in first

    def read(self, path: Path, content: str) -> list[ImportedLoad]:
        answers = []
        for number, text in enumerate(content.splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = decode(RequestLine, text)
                if line.metadata.benchmark_phase == "profiling":
                    answers.append(_answer(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
        return [ImportedLoad("", answers)]


def _answer(line: RequestLine) -> ImportedAnswer:
    identity = line.metadata
    metrics = line.metrics
    turn = identity.turn_index or 0
    names = (f"{identity.conversation_id}/{turn}", f"session {identity.session_num}/{turn}")
    sent_s = identity.request_start_ns / 1e9
    if line.error is not None:
        return ImportedAnswer(names, sent_s, None, str(line.error.get("message") or "failed"))
    first = metrics.time_to_first_token or metrics.ttft
    size = metrics.output_sequence_length
    if first is None or size is None:
        raise ValueError("time_to_first_token or output_sequence_length is missing: run AIPerf with --streaming")
    gaps_ms = metrics.inter_chunk_latency.value if metrics.inter_chunk_latency else []
    moments_s = [moment_ms / 1e3 for moment_ms in accumulate(gaps_ms, initial=first.value)]
    if not gaps_ms and metrics.request_latency is not None and size.value > 1:
        moments_s.append(metrics.request_latency.value / 1e3)
    prompt = int(metrics.input_sequence_length.value) if metrics.input_sequence_length else None
    return ImportedAnswer(names, sent_s, timed_answer(moments_s, int(size.value), None, prompt))
