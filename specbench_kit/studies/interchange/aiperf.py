"""AIPerf's per-request records: metadata, metrics with their units, and what was accepted."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.rows import read_rows
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.interchange.base import ForeignTrace, Format, formats
from specbench_kit.studies.interchange.dialogues import dialogues
from specbench_kit.studies.interchange.verifications import VerifiedRequest, read_acceptance, trace_of

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

Fields = Mapping[str, Any]


@formats.register("aiperf")
class AIPerf(Format):
    """NVIDIA AIPerf's `profile_export.jsonl`.

    Times of day are the run's start and, from there, the method's own clock, which stands still while other methods
    have their turns. `time_kind` is a field of ours: measured or modelled. With `--export-level records`, records of a
    server that reports acceptance have it in `spec_decode_acceptance`, which makes a trace.
    """

    summary = "per-request records of AIPerf, JSONL (profile_export.jsonl); imported as traces"
    tool = "AIPerf"
    gives_traces = True

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        requests = [found for place, row in read_rows(path) if (found := _told(place, row))]
        if not requests:
            raise SkitError(
                f"{path} holds no record with spec_decode_acceptance: run AIPerf with --export-level records against a "
                "server that reports acceptance per request"
            )
        return trace_of(requests)

    def write(self, run: "RunDirectory") -> str:
        started_at = run.run.get("started_at")
        started_s = datetime.fromisoformat(started_at).timestamp() if started_at else 0.0
        rows = _rows(run.records(), started_s)
        return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _told(place: str, row: Fields) -> VerifiedRequest | None:
    acceptance = row.get("spec_decode_acceptance")
    if not acceptance:
        return None
    try:
        metrics, name = row["metrics"], row["metadata"]["x_request_id"]
        output = acceptance.get("completion_tokens") or metrics["output_sequence_length"]["value"]
        return read_acceptance(str(name), metrics["input_sequence_length"]["value"], output, acceptance)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SkitError(f"{place}: not a record of AIPerf ({reason})") from error


def _rows(records: list[RequestRecord], started_s: float) -> Iterator[dict[str, Any]]:
    session = 0
    for repeat in sorted({record.repeat for record in records}):
        for name, turns in dialogues([record for record in records if record.repeat == repeat]).items():
            for turn, record in enumerate(turns):
                identity = {"session_num": session, "conversation_id": name, "turn_index": turn}
                yield {
                    "metadata": identity | _metadata(record, started_s),
                    "metrics": _metrics(record),
                    "error": _error(record),
                }
            session += 1


def _metadata(record: RequestRecord, started_s: float) -> dict[str, Any]:
    finished_s = record.finished_s or 0.0
    name = f"{record.request_id}#{record.repeat}"
    return {
        "x_request_id": name,
        "x_correlation_id": name,
        "request_start_ns": _nanoseconds(started_s + finished_s - (record.e2e_s or 0.0)),
        "request_ack_ns": None,
        "request_end_ns": _nanoseconds(started_s + finished_s),
        "worker_id": "skit",
        "record_processor_id": "skit",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
        "cancellation_time_ns": None,
        "time_kind": record.time_kind,
    }


def _metrics(record: RequestRecord) -> dict[str, Any]:
    prompt = len(record.prompt_ids) or None
    if record.finish_reason == "error":
        return _known({"error_isl": (prompt, "tokens")})
    tokens = len(record.output_ids)
    return _known(
        {
            "input_sequence_length": (prompt, "tokens"),
            "time_to_first_token": (_milliseconds(record.ttft_s), "ms"),
            "request_latency": (_milliseconds(record.e2e_s), "ms"),
            "output_token_count": (tokens, "tokens"),
            "output_sequence_length": (tokens, "tokens"),
            "inter_token_latency": (_milliseconds(record.tpot_s), "ms"),
            "inter_chunk_latency": (_chunks(record), "ms"),
            "output_token_throughput_per_user": (1 / record.tpot_s if record.tpot_s else None, "tokens/sec/user"),
        }
    )


def _chunks(record: RequestRecord) -> list[float] | None:
    """Gaps between bursts of tokens, as a client of the stream would see them."""
    ends_s = [moment_s for one in record.rounds for moment_s in (one.commits_s or [one.end_s])]
    known: list[float | None] = [*ends_s]
    if len(ends_s) < 2 or None in known:
        return None
    return [(after_s - before_s) * 1e3 for before_s, after_s in pairwise(ends_s)]


def _error(record: RequestRecord) -> dict[str, Any] | None:
    if record.finish_reason != "error":
        return None
    return {"code": None, "type": "RequestError", "message": record.error or "the request failed"}


def _known(metrics: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """A metric that has no value for a request is left out, as AIPerf does."""
    return {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
