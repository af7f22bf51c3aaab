"""Traces on disk: one Parquet row per request, read as a stream."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line, one_line_texts
from specbench_kit.core.typed_json import Count, Number, convert, parse
from specbench_kit.decoding.records import FinishReason
from specbench_kit.runs import provenance

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 4
READABLE = (2, 3, 4)
"""Version 2 has no capacity in its header, version 3 has no word on what the trace lacks and who may use it."""
STATISTICS = ("confidence", "entropy", "margin", "logit_std", "probability")
"""Recorded per drafted token, in the order of `NodeStats`."""
ROWS_PER_GROUP = 64
METADATA = b"specbench_kit"
DRAFT_STATISTICS, TOKEN_IDS, STEP_TIMES = "draft statistics", "token ids", "step times"
CURES = {
    DRAFT_STATISTICS: "take a method that reads none, such as fixed-k, oracle or sglang-ema, or a trace of skit record",
    TOKEN_IDS: "take a trace that was recorded with them",
    STEP_TIMES: "choose a --deployment",
}
"""What a trace may have to do without, and what a reader can do about it."""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """What target and draft say over one request.

    At output offset t the draft model, given prompt and `output_ids[:t]`, goes on greedily with `drafted[t]`
    ([offsets, max_draft]); `statistics` is [offsets, max_draft, 5]. `continuation` is what the target would have
    said after the end of the output: drafts that run over the end are judged against it.
    """

    request_id: str
    category: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: FinishReason
    continuation: list[int]
    drafted: NDArray[np.int32]
    statistics: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What a trace file says about itself: `run` is provenance in the form of `run.json`.

    On the recording machine a draft step took `draft_s`, verifying n drafted tokens `verify_s[n]`, and judging a token,
    less the score, `statistics_s` (`run["statistics"]` says how that was timed), each at the lower quartile. Prompt,
    output and draft of a request came to `capacity` tokens at most; a trace that does not say so recorded each answer
    up to there.

    `lacks` names what is not on record. Without draft statistics, `statistics` is [offsets, max_draft, 0]; without
    token ids, only the numbers of tokens are true, and which drafted ones are the answer's; without step times, all
    are 0. `licence` says under which others may use the trace.
    """

    max_draft: Count
    draft_s: Number
    verify_s: tuple[Number, ...]
    run: dict[str, Any]
    statistics_s: Number = 0.0
    capacity: Count | None = None
    lacks: tuple[str, ...] = ()
    licence: str | None = None

    def holds(self, trace: RequestTrace) -> int:
        """The most tokens that a request could come to when it was recorded, or that its answer is known up to."""
        known = len(trace.prompt_ids) + len(trace.output_ids) + len(trace.continuation)
        return known if self.capacity is None else self.capacity

    def require(self, part: str, reader: str) -> None:
        """Refuse who reads what is not on record; `reader` says so, as in `svip reads statistics`."""
        if part in self.lacks:
            raise SkitError(f"{reader}, and this trace has no {part} on record: {CURES[part]}")


class TraceFile:
    """A trace to read; requests are streamed, a row group at a time."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self.path = path
        try:
            self._file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise SkitError(f"cannot read the trace {path}: {first_line(error)}; record it with skit record") from error
        self.header = _read_header(path, self._file.schema_arrow)

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __iter__(self) -> Iterator[RequestTrace]:
        import pyarrow

        try:
            for batch in self._file.iter_batches(batch_size=ROWS_PER_GROUP):
                _refuse_nulls(batch)
                yield from (self._row(batch, index) for index in range(batch.num_rows))
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise SkitError(f"the trace {self.path} is damaged: {first_line(error)}; record it again") from error

    def _row(self, batch: "pyarrow.RecordBatch", index: int) -> RequestTrace:
        plain = {name: batch.column(name)[index].as_py() for name in PLAIN}
        shape = (len(plain["output_ids"]), self.header.max_draft)
        drafted = _values(batch, "drafted", index).reshape(shape)
        trace = RequestTrace(**plain, drafted=drafted, statistics=self._statistics(batch, index, shape))
        if fault := _fault(trace, self.header):
            raise ValueError(f"request '{trace.request_id}' {fault}")
        return trace

    def _statistics(self, batch: "pyarrow.RecordBatch", index: int, shape: tuple[int, int]) -> NDArray[np.float32]:
        if DRAFT_STATISTICS in self.header.lacks:
            return np.empty((*shape, 0), np.float32)
        return np.stack([_values(batch, name, index).reshape(shape) for name in STATISTICS], axis=-1)

    def describe(self) -> dict[str, Any]:
        """What a run records of it."""
        more = {"imported": _importer(self.header.run.get("imported")), "licence": self.header.licence}
        known = {name: value for name, value in more.items() if value}
        return {"file": self.path.name, "sha256": provenance.hash_file(self.path), **known}

    def said(self, *keys: str) -> Any:
        """What the provenance in the header says under these keys, each inside the one before."""
        found: Any = self.header.run
        for key in keys:
            if not isinstance(found, dict) or key not in found:
                raise SkitError(f"the trace {self.path} does not say its {' '.join(keys)}: record it again")
            found = found[key]
        return found


def _importer(found: Any) -> dict[str, Any]:
    """Whose file a trace was made of, and what a reader of its numbers must know."""
    if not isinstance(found, dict):
        return {}
    notes = found.get("notes")
    return {"tool": str(found.get("tool")), "notes": list(map(str, notes)) if isinstance(notes, list) else []}


def _refuse_nulls(batch: "pyarrow.RecordBatch") -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        items = 0 if name in TEXT else column.flatten().null_count
        if column.null_count or items:
            raise ValueError(f"column {name} holds null")


def _fault(trace: RequestTrace, header: TraceHeader) -> str:
    """What cannot be true of a recorded request; nothing where all is well."""
    length = len(trace.prompt_ids) + len(trace.output_ids)
    if not (trace.prompt_ids and trace.output_ids):
        return "has no prompt or no output"
    if trace.finish_reason not in ("eos", "length"):
        return f"finished for the reason '{trace.finish_reason}', not eos or length"
    if min(*trace.prompt_ids, *trace.output_ids, *trace.continuation, trace.drafted.min()) < 0:
        return "holds a negative token"
    if not np.isfinite(trace.statistics).all():
        return "has draft statistics that are no numbers"
    if header.capacity is not None and len(trace.continuation) < min(header.max_draft + 1, header.capacity - length):
        return f"has an answer that ends before the capacity of {header.capacity} tokens"
    return ""


TEXT = ("request_id", "category", "finish_reason")
PLAIN = ("request_id", "category", "prompt_ids", "output_ids", "finish_reason", "continuation")


def _values(batch: "pyarrow.RecordBatch", name: str, index: int) -> NDArray[Any]:
    values: NDArray[Any] = batch.column(name)[index].values.to_numpy(zero_copy_only=False)
    return values


def columns() -> "pyarrow.Schema":
    import pyarrow

    tokens, numbers = pyarrow.list_(pyarrow.int32()), pyarrow.list_(pyarrow.float32())
    columns = [(name, pyarrow.string()) for name in TEXT]
    columns += [(name, tokens) for name in ("prompt_ids", "output_ids", "continuation", "drafted")]
    columns += [(name, numbers) for name in STATISTICS]
    return pyarrow.schema(columns)


def _read_header(path: Path, schema: "pyarrow.Schema") -> TraceHeader:
    metadata = schema.metadata or {}
    if METADATA not in metadata:
        raise SkitError(f"{path} is a Parquet file but not a trace: record one with skit record")
    try:
        content = one_line_texts(parse(metadata[METADATA]))
        if (version := content.pop("schema_version")) not in READABLE:
            raise SkitError(_other_version(path, version))
        header = _checked_header(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        raise SkitError(f"the trace {path} is damaged: its header cannot be read{reason}; record it again") from error
    if not schema.remove_metadata().equals(columns()):
        raise SkitError(f"the trace {path} is damaged: its columns are not those of a trace; record it again")
    return header


def _checked_header(content: dict[str, Any]) -> TraceHeader:
    header = convert(TraceHeader, content)
    if unknown := content.keys() - {field.name for field in fields(TraceHeader)}:
        raise ValueError(f"{min(unknown)} is unknown")
    if unknown := set(header.lacks) - set(CURES):
        raise ValueError(f"it lacks {min(unknown)}, which is unknown")
    times_s = (header.draft_s, header.statistics_s, *header.verify_s)
    if not all(seconds >= 0 for seconds in times_s):
        raise ValueError("times must be numbers from 0 up")
    if len(header.verify_s) <= header.max_draft or not header.max_draft:
        raise ValueError(f"{len(header.verify_s)} verification times do not go with drafts of {header.max_draft}")
    return header


def _other_version(path: Path, version: Any) -> str:
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return f"{path} was written by a newer specbench-kit: upgrade specbench-kit"
    return f"{path} was written by an older specbench-kit: record it again"
