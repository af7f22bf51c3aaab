"""NVIDIA AIPerf's `profile_export.jsonl`: one record per request."""

from itertools import accumulate
from pathlib import Path

from specbench_kit.core.foreign_file import CANCELLED, WARM_UP, WITHOUT_TIMES
from specbench_kit.core.typed_json import decode
from specbench_kit.live.engines.answers import ThinkingPart
from specbench_kit.studies.ab.imports.base import (
    AnswerList,
    ImportedLoad,
    ImportedResults,
    ResultFile,
    result_files,
)
from specbench_kit.studies.interchange.aiperf_records import (
    AIPerfRecord,
    RecordMetrics,
    per_second,
)


@result_files.register("aiperf")
class AIPerfRecords(ResultFile):
    """One load per file; a request is known by its conversation, or by its position where these are
    named at random.
    """

    tool = "AIPerf"
    note = "AIPerf records no outputs: they are not compared."

    def recognises(self, path: Path, content: str) -> bool:
        first = content.lstrip().partition("\n")[0]
        return '"metadata"' in first and '"request_start_ns"' in first

    def read(self, path: Path, content: str) -> ImportedResults:
        collected = AnswerList()
        units = set[str]()
        for number, text in enumerate(content.splitlines(), 1):
            if text.strip():
                try:
                    _add(decode(AIPerfRecord, text), collected, units)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
        if not collected.answers and collected.left_out[WITHOUT_TIMES]:
            raise ValueError(
                "no record has time_to_first_token and output_sequence_length: run AIPerf with --streaming"
            )
        words = (
            f"times in {' and '.join(sorted(units))}, as each says" if units else "without times"
        )
        return ImportedResults([ImportedLoad("", collected.answers)], words, collected.left_out)


def _add(record: AIPerfRecord, collected: AnswerList, units: set[str]) -> None:
    identity = record.metadata
    metrics = record.metrics
    if identity is None or identity.request_start_ns is None:
        collected.leave_out(WITHOUT_TIMES)
        return
    if not record.is_profiling or record.was_cancelled:
        collected.leave_out(CANCELLED if record.is_profiling else WARM_UP)
        return
    turn = identity.turn_index or 0
    names = (f"{identity.conversation_id}/{turn}", f"session {identity.session_num}/{turn}")
    sent_s = identity.request_start_ns / 1e9
    if record.error is not None:
        collected.add_failure(names, sent_s, record.error.message or "failed")
        return
    first = metrics.first_token if metrics else None
    size = metrics.output_sequence_length if metrics else None
    if metrics is None or first is None or size is None:
        collected.leave_out(WITHOUT_TIMES)
        return
    units.add(first.unit)
    moments_s = [first.value / per_second("time_to_first_token", first)]
    gaps = metrics.inter_chunk_latency
    latency = metrics.request_latency
    if gaps is not None and gaps.value:
        units.add(gaps.unit)
        gap_per_s = per_second("inter_chunk_latency", gaps)
        moments_s = list(accumulate((gap / gap_per_s for gap in gaps.value), initial=moments_s[0]))
    elif latency is not None and size.tokens > 1:
        units.add(latency.unit)
        moments_s.append(latency.value / per_second("request_latency", latency))
    prompt = metrics.input_sequence_length
    collected.add(
        names,
        sent_s,
        moments_s,
        size.tokens,
        None,
        prompt.tokens if prompt else None,
        _thinking(metrics, size.tokens),
    )


def _thinking(metrics: RecordMetrics, tokens: int) -> ThinkingPart | None:
    """Return the thinking part that AIPerf counted; None for an answer without one."""
    thoughts = metrics.reasoning_token_count
    if thoughts is None or not thoughts.tokens:
        return None
    reply = metrics.time_to_first_output_token
    return ThinkingPart(
        tokens=min(thoughts.tokens, tokens),
        reply_s=reply.value / per_second("time_to_first_output_token", reply) if reply else None,
        unfinished=thoughts.tokens >= tokens,
    )
