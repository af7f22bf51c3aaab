"""Writes traces to disk as a stream, one Parquet row per request; an unfinished one is a folder of
requests.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from specbench_kit.core.errors import SkitError, require
from specbench_kit.runs.line_file import lock, unlock
from specbench_kit.traces.reading_aids import METADATA as AIDS
from specbench_kit.traces.reading_aids import ReadingAids
from specbench_kit.traces.trace import (
    CANDIDATE_COLUMNS,
    METADATA,
    PLAIN,
    ROWS_PER_GROUP,
    SCHEMA_VERSION,
    STATISTICS,
    RequestTrace,
    TraceFile,
    TraceHeader,
    columns,
)


class TraceWriter:
    """Writes requests in groups, and `aids` if there are any by then; the file appears once the
    context is left without an error.
    """

    def __init__(self, path: Path, header: TraceHeader) -> None:
        import pyarrow.parquet

        self.aids: ReadingAids | None = None
        self._path = path
        self._temporary = path.with_name(f".{path.name}.partial")
        content = {"schema_version": SCHEMA_VERSION, **msgspec.structs.asdict(header)}
        self._schema = columns().with_metadata({METADATA: msgspec.json.encode(content)})
        self._rows: list[RequestTrace] = []
        with self._plain_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pyarrow.parquet.ParquetWriter(
                self._temporary,
                self._schema,
                compression="zstd",
                # Statistics of half precision differ from place to place: plain columns take a
                # third of the bytes.
                use_dictionary=False,
                write_page_checksum=True,
            )

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._flush()
                with self._plain_errors():
                    if self.aids is not None:
                        self._writer.add_key_value_metadata({AIDS: self.aids.packed()})
                    self._writer.close()
                    self._temporary.replace(self._path)
        finally:
            with suppress(OSError):
                self._writer.close()
            self._temporary.unlink(missing_ok=True)

    def append(self, trace: RequestTrace) -> None:
        """Add one request."""
        self._rows.append(trace)
        if len(self._rows) == ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if not self._rows:
            return
        table = {}
        for name in PLAIN:
            table[name] = [getattr(row, name) for row in self._rows]
        table["drafted"] = [row.drafted.ravel() for row in self._rows]
        for index, name in enumerate(STATISTICS):
            # A slice, not an index: a trace without statistics has empty ones.
            table[name] = [row.statistics[..., index : index + 1].ravel() for row in self._rows]
        for column, name in CANDIDATE_COLUMNS.items():
            table[column] = [getattr(row.candidates, name) for row in self._rows]
        with self._plain_errors():
            self._writer.write_table(pyarrow.table(table, schema=self._schema))
        self._rows.clear()

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SkitError(f"cannot write {self._path}: {error.strerror or error}") from error


IDENTITY = ("dataset", "prompts", "models", "config")
"""The parts of a header's provenance that a recording must share with the one that it continues."""


class UnfinishedTrace:
    """The finished requests of a recording, which survive its end.

    `names` are the ids of all requests in the order of the dataset, in which the trace will hold them.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        self._folder = path.with_name(f"{path.name}.unfinished")
        self._numbers = {name: number for number, name in enumerate(names)}

    @property
    def recorded(self) -> list[TraceFile]:
        """Return the files of the requests that are recorded, in the order of the dataset."""
        return [TraceFile(file) for file in sorted(self._folder.glob("*.parquet"))]

    def begin(self, *, resume: bool) -> TraceHeader | None:
        """Return the header of the recording to continue; None for a new one.

        Raise SkitError if an interrupted recording would be overwritten.
        """
        files = self.recorded
        require(
            resume or not files,
            f"a recording of {self._path} was interrupted after {len(files)} requests: continue it with --resume, or "
            f"delete {self._folder}",
        )
        return files[0].header if files else None

    @contextmanager
    def one_writer(self) -> Iterator[None]:
        """Make the folder, to which this process alone writes within the context; an empty one does
        not stay.

        So a place that cannot be written is an error before anything is recorded.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SkitError(f"cannot write {self._path}: {error.strerror or error}") from error
        lock(self._folder)
        try:
            yield
        finally:
            unlock(self._folder)
            with suppress(OSError):
                self._folder.rmdir()

    def append(self, header: TraceHeader, trace: RequestTrace) -> None:
        """Store one request."""
        name = f"{self._numbers[trace.request_id]:06}.parquet"
        with TraceWriter(self._folder / name, header) as writer:
            writer.append(trace)

    def traces(self) -> Iterator[RequestTrace]:
        """Yield the recorded requests in the order of the dataset."""
        for file in self.recorded:
            yield from file

    def remove(self) -> None:
        """Delete the folder, once the trace is written."""
        shutil.rmtree(self._folder, ignore_errors=True)


def require_same(path: Path, stored: TraceHeader, header: TraceHeader) -> None:
    """Raise SkitError if a recording cannot continue one with another header."""
    parts = [name for name in IDENTITY if stored.run.get(name) != header.run.get(name)]
    parts += [
        name
        for name in ("max_draft", "drafter", "capacity", "trees")
        if getattr(stored, name) != getattr(header, name)
    ]
    if parts:
        raise SkitError(
            f"the interrupted recording of {path} has another {' and '.join(parts)}: record with the same options, or "
            "to another --out"
        )
