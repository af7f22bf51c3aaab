"""The lines of NVIDIA AIPerf's `profile_export.jsonl`, in the names of all its versions."""

from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.foreign_file import PER_SECOND
from specbench_kit.core.typed_json import Number
from specbench_kit.studies.interchange.verifications import Acceptance

PROFILING = "profiling"
"""The phase whose requests count; the others warm the server up."""


class Quantity(Struct):
    """A metric that is one number, with its unit."""

    value: Number
    unit: str = ""


class Quantities(Struct):
    """A metric that is a number for each chunk, with its unit."""

    value: list[Number]
    unit: str = ""


class TokenCount(Struct):
    """A metric that counts tokens."""

    value: Annotated[float, Meta(ge=0, lt=1e15)]

    @property
    def tokens(self) -> int:
        """The count as a whole number."""
        return int(self.value)


class RecordMetadata(Struct):
    """Which request a record is about, when it was sent in nanoseconds of the clock, and in which
    phase.
    """

    request_start_ns: int | None = None
    session_num: int = 0
    turn_index: int | None = None
    conversation_id: str | None = None
    x_request_id: str | int | None = None
    benchmark_phase: str = PROFILING
    was_cancelled: bool = False


class RecordMetrics(Struct):
    """The metrics of a request; `ttft` is the name in the oldest files."""

    request_latency: Quantity | None = None
    time_to_first_token: Quantity | None = None
    ttft: Quantity | None = None
    inter_chunk_latency: Quantities | None = None
    output_sequence_length: TokenCount | None = None
    input_sequence_length: TokenCount | None = None
    reasoning_token_count: TokenCount | None = None
    time_to_first_output_token: Quantity | None = None

    @property
    def first_token(self) -> Quantity | None:
        """The time to the first token; only streamed requests have it."""
        return self.time_to_first_token or self.ttft


class RecordedError(Struct):
    """Why a request failed."""

    type: str | None = None
    message: str | None = None


class AIPerfRecord(Struct):
    """A line of the file."""

    metadata: RecordMetadata | None = None
    metrics: RecordMetrics | None = None
    error: RecordedError | None = None
    spec_decode_acceptance: Acceptance | None = None

    @property
    def was_cancelled(self) -> bool:
        """True for a request that AIPerf broke off itself."""
        broken_off = self.error is not None and self.error.type == "RequestCancellationError"
        return broken_off or (self.metadata is not None and self.metadata.was_cancelled)

    @property
    def is_profiling(self) -> bool:
        """True for a request that is not part of the warm-up."""
        return self.metadata is None or self.metadata.benchmark_phase == PROFILING


def per_second(name: str, metric: Quantity | Quantities) -> float:
    """Return how many units of a metric of time make a second; ValueError for a unit that AIPerf
    does not have.
    """
    if metric.unit not in PER_SECOND:
        known = ", ".join(PER_SECOND)
        raise ValueError(f"the unit of {name} must be one of {known}, not {metric.unit!r}")
    return PER_SECOND[metric.unit]
