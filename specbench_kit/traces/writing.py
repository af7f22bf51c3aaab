"""Writes traces to disk as a stream: one Parquet row per request."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from specbench_kit.core.errors import SkitError
from specbench_kit.traces.trace import (
    CANDIDATE_COLUMNS,
    METADATA,
    PLAIN,
    ROWS_PER_GROUP,
    SCHEMA_VERSION,
    STATISTICS,
    RequestTrace,
    TraceHeader,
    columns,
)


class TraceWriter:
    """Writes requests in groups; the file appears once the context is left without an error."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        import pyarrow.parquet

        self._path = path
        self._temporary = path.with_name(f".{path.name}.partial")
        content = {"schema_version": SCHEMA_VERSION, **msgspec.structs.asdict(header)}
        self._schema = columns().with_metadata({METADATA: msgspec.json.encode(content)})
        self._rows: list[RequestTrace] = []
        with self._plain_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pyarrow.parquet.ParquetWriter(
                self._temporary, self._schema, compression="zstd", write_page_checksum=True
            )

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                with self._plain_errors():
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
        table = {name: [getattr(row, name) for row in self._rows] for name in PLAIN}
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
