"""Traces on disk: one Parquet row per request, read as a stream."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_readable
from specbench_kit.core.plain_text import first_line, one_line_texts
from specbench_kit.core.repeated_prompts import passes_for, repeated_id
from specbench_kit.core.typed_json import Count, JsonObject, convert, parse
from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.decoding.records import FinishReason
from specbench_kit.runs import provenance
from specbench_kit.runs.document import TraceReference
from specbench_kit.traces.candidate_trees import CandidateColumns
from specbench_kit.traces.library import trace_file
from specbench_kit.traces.reading_aids import METADATA as AIDS
from specbench_kit.traces.reading_aids import ReadingAids
from specbench_kit.traces.recorded_run import RecordedRun

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 6
READABLE = (2, 3, 4, 5, 6)
"""Versions that can be read: 2 states no capacity, 3 does not say what the trace lacks and who may
use it, 4 holds drafts of a draft model alone, 5 no candidates of trees.
"""
NO_TOKEN = -1
"""Fills up drafts that end before `max_draft` tokens."""
STATISTICS = ("confidence", "entropy", "margin", "logit_std", "probability")
"""Statistics of each drafted token, in the order of `NodeStats`."""
ROWS_PER_GROUP = 64
METADATA = b"specbench_kit"
DRAFT_STATISTICS = "draft statistics"
TOKEN_IDS = "token ids"
STEP_TIMES = "step times"
ALTERNATIVES = {
    DRAFT_STATISTICS: "take a method that reads none, such as fixed-k, oracle or sglang-ema, or a trace of skit record",
    TOKEN_IDS: "take a trace that was recorded with them",
    STEP_TIMES: "choose a --deployment",
}
"""Parts that a trace may lack, and what to do if one is needed."""
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
T = TypeVar("T")
UNNAMED = "an unnamed model"


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One request as target and drafter answer it.

    `drafted[t]` is the drafter's greedy continuation of prompt and `output_ids[:t]`: [offsets, max_draft], where
    `NO_TOKEN` stands behind a draft that ended; `statistics` is [offsets, max_draft, 5]. `continuation` is how the
    target would have gone on behind the output: drafts that reach beyond the output are verified against it.
    `sources[t]` names the member of a hybrid drafter that drafted at t; it is empty for other drafters. `candidates`
    are those that trees are made of, if the trace holds any. `dialogue` names what the prompt is a turn of, where the
    trace is read several times.
    """

    request_id: str
    category: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: FinishReason
    continuation: list[int]
    drafted: NDArray[np.int32]
    statistics: NDArray[np.float32]
    sources: list[str] = field(default_factory=list)
    candidates: CandidateColumns = field(default_factory=CandidateColumns)
    dialogue: str = ""

    def draft_lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens that were drafted at each offset."""
        lengths: NDArray[np.int64] = (self.drafted != NO_TOKEN).sum(axis=1)
        return lengths


class TraceHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header of a trace file.

    Times are those of the recording machine, at the lower quartile: `draft_s` of one draft step,
    `verify_s[n]` of a verification of n drafted tokens, and `statistics_s` of scoring one token
    without the score itself (`recording.statistics` says how that was timed). `run` is what the
    file says of the run that recorded it, in the form of `run.json`; `recording` reads it. Prompt,
    output and draft of a request had room for `capacity` tokens; a trace without it knows each
    answer only as far as it goes.

    `lacks` names parts that are not recorded. Without draft statistics, `statistics` is [offsets, max_draft, 0];
    without token ids, only the numbers of tokens are true, and which drafted ones are right; without step times, all
    times are 0. `licence` is the licence under which others may use the trace.

    `drafter` drafted, as `parse_drafter` reads it. `drafted` holds its draft at every offset as if all earlier rounds
    had committed the recorded answer, which decides what a model, a head or a look-up in the request's own text
    drafts. A drafter that also searches earlier answers (`depends_on_order`) saw those of the requests above it in the
    file and no others, as in a run of batch size 1. `draft_s` is then the time of a step of its model, or of looking
    up a token. `state_layers` are the target's layers whose hidden states it reads, of `state_bytes` per token each.

    `trees` are the methods whose questions the recorded candidates answer, at every offset; without any, only chains
    can be replayed.
    """

    max_draft: Count
    draft_s: Seconds
    verify_s: tuple[Seconds, ...]
    run: JsonObject
    statistics_s: Seconds = 0.0
    capacity: Count | None = None
    lacks: tuple[str, ...] = ()
    licence: str | None = None
    drafter: str = "model"
    state_layers: tuple[Count, ...] = ()
    state_bytes: Count = 0
    trees: tuple[str, ...] = ()

    @property
    def recording(self) -> RecordedRun:
        """What `run` says."""
        return RecordedRun.read(self.run)

    def token_limit(self, trace: RequestTrace) -> int:
        """Return how many tokens a request had room for when it was recorded, or as many as are
        known of it.
        """
        recorded = len(trace.prompt_ids) + len(trace.output_ids) + len(trace.continuation)
        return recorded if self.capacity is None else self.capacity

    def require(self, part: str, reader: str) -> None:
        """Raise SkitError if the trace lacks a part; `reader` says who needs it, as in `svip reads
        statistics`.
        """
        if part in self.lacks:
            raise SkitError(
                f"{reader}, and this trace has no {part} on record: {ALTERNATIVES[part]}"
            )


class TraceFile:
    """A trace to read, a file or a bundled one by name; requests are streamed, one row group at a
    time.
    """

    def __init__(self, path: Path, limit: int | None = None, fewest: int = 0) -> None:
        """Open a trace, of which no more than the first `limit` requests are read.

        They are read as often as `fewest` requests take, always all of them.
        """
        import pyarrow
        import pyarrow.parquet

        self.path = path = trace_file(path)
        try:
            self._file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise SkitError(
                f"cannot read the trace {path}: {first_line(error)}; record it with skit record"
            ) from error
        self.header = _read_header(path, self._file.schema_arrow)
        self.recording = self.header.recording
        self.aids = _read_aids(path, self._file.metadata.metadata or {})
        self.recorded = int(self._file.metadata.num_rows)
        """The number of requests that the file holds."""
        self._count = self.recorded if limit is None else min(limit, self.recorded)
        self.passes = passes_for(self._count, fewest)

    def __len__(self) -> int:
        return self._count * self.passes

    def __iter__(self) -> Iterator[RequestTrace]:
        if self.passes == 1:
            yield from self._read()
            return
        for number in range(self.passes):
            dialogues = Dialogues()
            for trace in self._read():
                # Answers to the same prompt are no independent samples, and neither are the turns
                # of a dialogue.
                place = dialogues.index(trace.request_id, trace.prompt_ids, trace.output_ids)
                name = repeated_id(trace.request_id, number)
                yield replace(trace, request_id=name, dialogue=f"prompt {place}")

    def _read(self) -> Iterator[RequestTrace]:
        import pyarrow

        rows = 0
        try:
            for batch in self._file.iter_batches(batch_size=ROWS_PER_GROUP):
                rows += batch.num_rows
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    # A null inside a list would silently become a number.
                    if column.null_count or (name not in TEXT and column.flatten().null_count):
                        raise ValueError(f"column {name} holds null")
                before = rows - batch.num_rows
                content = {
                    name: _values(name, column)
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
                for index in range(min(batch.num_rows, self._count - before)):
                    yield self._request(content, index)
                if rows >= self._count:
                    break
            if rows < self._count:  # a changed byte in a page's header can hide rows
                raise ValueError(
                    f"{self.recorded - rows} of its {self.recorded} requests are missing"
                )
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise SkitError(
                f"the trace {self.path} is damaged: {first_line(error)}; record it again"
            ) from error

    def _request(self, content: Mapping[str, "_Texts | _Lists"], index: int) -> RequestTrace:
        plain: dict[str, Any] = {
            name: content[name].plain(index) for name in PLAIN if name in content
        }
        shape = (len(plain["output_ids"]), self.header.max_draft)

        def matrix(name: str) -> NDArray[Any]:
            values: NDArray[Any] = content[name].part(index)
            return values.reshape(shape)

        statistics = np.empty((*shape, 0), np.float32)
        if DRAFT_STATISTICS not in self.header.lacks:
            statistics = np.stack([matrix(name) for name in STATISTICS], axis=-1)
        trees = {
            name: content[column].part(index)
            for column, name in CANDIDATE_COLUMNS.items()
            if column in content
        }
        trace = RequestTrace(
            **plain,
            drafted=matrix("drafted"),
            statistics=statistics,
            candidates=CandidateColumns(**trees),
        )
        if fault := _fault(trace, self.header):
            raise ValueError(f"request '{trace.request_id}' {fault}")
        conversation, is_turn, _ = trace.request_id.rpartition("/")
        has_tools = bool(is_turn) and self.aids is not None and conversation in self.aids.tools
        return replace(trace, dialogue=conversation) if has_tools else trace

    def describe(self) -> TraceReference:
        """Return what `run.json` stores of the trace: its hash, the tool it was imported from, and
        its licence.
        """
        return TraceReference(
            file=self.path.name,
            sha256=provenance.hash_file(self.path),
            imported=self.recording.imported,
            licence=self.header.licence or None,
        )

    def known(self, value: T | None, name: str) -> T:
        """Return something that the trace says of its recording; raise SkitError where it does
        not say it.
        """
        if value is None:
            raise SkitError(f"the trace {self.path} does not say its {name}: record it again")
        return value

    def model_hash(self, role: str) -> str:
        """Return the hash of the model with this role."""
        return self.known(self.recording.model_hash(role), f"models {role} hash")

    def model_name(self, role: str) -> str:
        """Return the name of the model with this role, which an imported trace may not know."""
        model = self.recording.models.get(role)
        return (model and model.name) or UNNAMED

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that an answer could have; None for an imported trace."""
        return self.recording.config.max_new_tokens


@dataclass(frozen=True, slots=True)
class _Texts:
    """A column of texts."""

    texts: list[str]

    def plain(self, index: int) -> str:
        """Return the text of one request."""
        return self.texts[index]

    def part(self, index: int) -> Any:
        """Refuse, since texts are no numbers."""
        raise ValueError("a column of lists holds texts")


@dataclass(frozen=True, slots=True)
class _Lists:
    """A column of lists: the values of all of them, an array of numbers or a list of texts, and
    where each begins.
    """

    values: Any
    bounds: list[int]

    def part(self, index: int) -> Any:
        """Return the values of one request."""
        return self.values[self.bounds[index] : self.bounds[index + 1]]

    def plain(self, index: int) -> list[Any]:
        """Return the values of one request as a list."""
        part = self.part(index)
        return part if isinstance(part, list) else part.tolist()


def _values(name: str, column: "pyarrow.Array[Any]") -> _Texts | _Lists:
    """Return a column's content: taken apart once for all requests of a batch, which is faster than
    for each.
    """
    if name in TEXT:
        return _Texts(column.to_pylist())
    flat = column.flatten()
    values = flat.to_pylist() if name == "sources" else flat.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy()
    return _Lists(values, (offsets - offsets[0]).tolist())


def _fault(trace: RequestTrace, header: TraceHeader) -> str:
    """Return what cannot be true of a recorded request, or an empty text."""
    length = len(trace.prompt_ids) + len(trace.output_ids)
    if not (trace.prompt_ids and trace.output_ids):
        return "has no prompt or no output"
    if trace.finish_reason not in ("eos", "length"):
        return f"finished for the reason '{trace.finish_reason}', not eos or length"
    least = min(min(trace.prompt_ids), min(trace.output_ids), min(trace.continuation, default=0))
    if min(least, trace.drafted.min() - NO_TOKEN) < 0:
        return "holds a negative token"
    if (trace.drafted[:, :-1] < np.minimum(trace.drafted[:, 1:], 0)).any():
        return "has a draft that goes on after its end"
    if len(trace.sources) not in (0, length - len(trace.prompt_ids)):
        return "does not say who drafted at every offset"
    if not np.isfinite(trace.statistics).all():
        return "has draft statistics that are no numbers"
    if header.capacity is not None and len(trace.continuation) < min(
        header.max_draft + 1, header.capacity - length
    ):
        return f"has an answer that ends before the capacity of {header.capacity} tokens"
    return trace.candidates.fault(len(trace.output_ids) + len(trace.continuation))


TEXT = ("request_id", "category", "finish_reason")
PLAIN = (
    "request_id",
    "category",
    "prompt_ids",
    "output_ids",
    "finish_reason",
    "continuation",
    "sources",
)


CANDIDATE_COLUMNS = {f"candidate_{column.name}": column.name for column in fields(CandidateColumns)}
"""The columns of `RequestTrace.candidates`, and their names there."""


def columns(version: int = SCHEMA_VERSION) -> "pyarrow.Schema":
    """Return the Parquet schema of a trace; before version 5 it had no `sources`, before version 6
    no candidates.
    """
    import pyarrow

    tokens = pyarrow.list_(pyarrow.int32())
    numbers = pyarrow.list_(pyarrow.float32())
    columns = [(name, pyarrow.string()) for name in TEXT]
    columns += [(name, tokens) for name in ("prompt_ids", "output_ids", "continuation", "drafted")]
    columns += [(name, numbers) for name in STATISTICS]
    columns += [("sources", pyarrow.list_(pyarrow.string()))] if version >= 5 else []
    if version >= 6:
        kinds = {"rest": numbers, "logprobs": numbers, "expanded": pyarrow.list_(pyarrow.bool_())}
        columns += [(column, kinds.get(name, tokens)) for column, name in CANDIDATE_COLUMNS.items()]
    return pyarrow.schema(columns)


def _read_header(path: Path, schema: "pyarrow.Schema") -> TraceHeader:
    metadata = schema.metadata or {}
    if METADATA not in metadata:
        raise SkitError(f"{path} is a Parquet file but not a trace: record one with skit record")
    try:
        content = one_line_texts(parse(metadata[METADATA]))
        if (version := content.pop("schema_version")) not in READABLE:
            require_readable(path, version, SCHEMA_VERSION)
            raise SkitError(f"{path} was written by an older specbench-kit: record it again")
        header = _convert_header(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        raise SkitError(
            f"the trace {path} is damaged: its header cannot be read{reason}; record it again"
        ) from error
    if not schema.remove_metadata().equals(columns(version)):
        raise SkitError(
            f"the trace {path} is damaged: its columns are not those of a trace; record it again"
        )
    return header


def _read_aids(path: Path, metadata: Mapping[bytes, bytes]) -> ReadingAids | None:
    """Return what the answers of a trace can be read by; None for a trace without it."""
    try:
        return ReadingAids.unpack(metadata[AIDS]) if AIDS in metadata else None
    except ValueError as error:
        raise SkitError(f"the trace {path} is damaged: {error}; record it again") from error


def _convert_header(content: object) -> TraceHeader:
    header = convert(TraceHeader, content)
    header.recording  # noqa: B018  # what is of a wrong type is found before anything reads it
    if unknown := set(header.lacks) - set(ALTERNATIVES):
        raise ValueError(f"it lacks {min(unknown)}, which is unknown")
    if len(header.verify_s) <= header.max_draft or not header.max_draft:
        raise ValueError(
            f"{len(header.verify_s)} verification times do not go with drafts of {header.max_draft}"
        )
    return header
