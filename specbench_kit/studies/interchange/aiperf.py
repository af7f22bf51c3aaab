"""AIPerf's per-request records: metadata, metrics with their units, and acceptance."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import CANCELLED, FAILED, WARM_UP
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.base import Row
from specbench_kit.datasets.rows import read_rows
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.interchange.aiperf_records import AIPerfRecord, RecordMetrics
from specbench_kit.studies.interchange.base import ForeignTrace, Format, dialogues, formats
from specbench_kit.studies.interchange.verifications import (
    VerifiedRequest,
    read_acceptance,
    trace_of,
)

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory


WITHOUT_ACCEPTANCE = "without spec_decode_acceptance"


MetricValue = float | list[float]


class ExportedMetric(Struct):
    """A metric of a written record, a number or one for each chunk, with its unit."""

    value: MetricValue
    unit: str


class ExportedMetadata(Struct, kw_only=True):
    """Which request a written record is about, and when it was sent and answered."""

    session_num: int
    conversation_id: str
    turn_index: int
    x_request_id: str
    x_correlation_id: str
    request_start_ns: int
    request_ack_ns: int | None = None
    request_end_ns: int
    worker_id: str = "skit"
    record_processor_id: str = "skit"
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False
    cancellation_time_ns: int | None = None
    time_kind: str


class ExportedError(Struct):
    """Why a request failed, which AIPerf writes with a code of HTTP."""

    code: int | None = None
    type: str = "RequestError"
    message: str = ""


class ExportedRecord(Struct):
    """A written line of the file."""

    metadata: ExportedMetadata
    metrics: dict[str, ExportedMetric]
    error: ExportedError | None


@formats.register("aiperf")
class AIPerf(Format):
    """NVIDIA AIPerf's `profile_export.jsonl`.

    Times of day are the run's start plus the method's own clock, which stands still while other
    methods have their turns. `time_kind` is a field of ours: measured or modelled. With
    `--export-level records`, records of a server that reports acceptance have it in
    `spec_decode_acceptance`, which makes a trace.
    """

    summary = "per-request records of AIPerf, JSONL (profile_export.jsonl); imported as traces"
    tool = "AIPerf"
    gives_traces = True

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        requests = []
        left_out = Counter[str]()
        for line, row in read_rows(path):
            found = _read_record(line, row)
            if isinstance(found, str):
                left_out[found] += 1
            else:
                requests.append(found)
        if not requests:
            raise SkitError(
                f"{path} holds no record with spec_decode_acceptance: run AIPerf with --export-level records against a "
                "server that reports acceptance per request"
            )
        return trace_of(requests, left_out)

    def write(self, run: "RunDirectory") -> str:
        started_at = run.document.started_at
        started_s = datetime.fromisoformat(started_at).timestamp() if started_at else 0.0
        rows = _rows(run.records(), started_s)
        return "".join(
            json.dumps(to_builtins(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows
        )


def _read_record(line: str, row: Row) -> VerifiedRequest | str:
    """Return the request of a record, or why it is left out."""
    try:
        record = convert(AIPerfRecord, row)
        if not record.is_profiling:
            return WARM_UP
        if record.was_cancelled or record.error is not None:
            return CANCELLED if record.was_cancelled else FAILED
        acceptance = record.spec_decode_acceptance
        if acceptance is None or acceptance.says_nothing:
            return WITHOUT_ACCEPTANCE
        if record.metadata is None or record.metadata.x_request_id is None:
            raise ValueError("metadata.x_request_id is missing")
        metrics = record.metrics or RecordMetrics()
        if metrics.input_sequence_length is None:
            raise ValueError("metrics.input_sequence_length is missing")
        output = acceptance.completion_tokens
        if not output and metrics.output_sequence_length is not None:
            output = metrics.output_sequence_length.tokens
        prompt = metrics.input_sequence_length.tokens
        return read_acceptance(str(record.metadata.x_request_id), prompt, output, acceptance)
    except ValueError as error:
        raise SkitError(f"{line}: not a record of AIPerf ({error})") from error


def _rows(records: Sequence[RequestRecord], started_s: float) -> Iterator[ExportedRecord]:
    session = 0
    for repeat in sorted({record.repeat for record in records}):
        for name, turns in dialogues(
            [record for record in records if record.repeat == repeat]
        ).items():
            for turn, record in enumerate(turns):
                error = None
                if record.finish_reason == "error":
                    error = ExportedError(message=record.error or "the request failed")
                metadata = _metadata(record, started_s, session, name, turn)
                yield ExportedRecord(metadata, _metrics(record), error)
            session += 1


def _metadata(
    record: RequestRecord, started_s: float, session: int, conversation: str, turn: int
) -> ExportedMetadata:
    finished_s = started_s + (record.finished_s or 0.0)
    name = f"{record.request_id}#{record.repeat}"
    return ExportedMetadata(
        session_num=session,
        conversation_id=conversation,
        turn_index=turn,
        x_request_id=name,
        x_correlation_id=name,
        request_start_ns=round((finished_s - (record.e2e_s or 0.0)) * 1e9),
        request_end_ns=round(finished_s * 1e9),
        time_kind=record.time_kind,
    )


def _metrics(record: RequestRecord) -> dict[str, ExportedMetric]:
    """Return the metrics that have a value; AIPerf leaves the others out, too."""
    prompt = len(record.prompt_ids) or None
    tokens = len(record.output_ids)
    metrics: Mapping[str, tuple[MetricValue | None, str]] = {
        "input_sequence_length": (prompt, "tokens"),
        "time_to_first_token": (_milliseconds(record.ttft_s), "ms"),
        "request_latency": (_milliseconds(record.e2e_s), "ms"),
        "output_token_count": (tokens, "tokens"),
        "output_sequence_length": (tokens, "tokens"),
        "inter_token_latency": (_milliseconds(record.tpot_s), "ms"),
        "inter_chunk_latency": (_chunk_gaps_ms(record), "ms"),
        "output_token_throughput_per_user": (
            1 / record.tpot_s if record.tpot_s else None,
            "tokens/sec/user",
        ),
    }
    if record.finish_reason == "error":
        metrics = {"error_isl": (prompt, "tokens")}
    return {
        name: ExportedMetric(value, unit)
        for name, (value, unit) in metrics.items()
        if value is not None
    }


def _chunk_gaps_ms(record: RequestRecord) -> list[float] | None:
    """Return the gaps between commits, as a client of the stream would see them; None if their
    times are not known.
    """
    ends_s: list[float | None] = [
        moment_s for step in record.rounds for moment_s in (step.commits_s or [step.end_s])
    ]
    if len(ends_s) < 2 or None in ends_s:
        return None
    return [((after_s or 0.0) - (before_s or 0.0)) * 1e3 for before_s, after_s in pairwise(ends_s)]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
