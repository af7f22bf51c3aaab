"""Traces on their way to disk: one Parquet row per request, written as a stream."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.traces.trace import (
    METADATA,
    PLAIN,
    ROWS_PER_GROUP,
    SCHEMA_VERSION,
    STATISTICS,
    RequestTrace,
    TraceHeader,
    columns,
)

if TYPE_CHECKING:
    import pyarrow


class TraceWriter:
    """Writes requests in groups; the file is complete once the context is left without an error."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        import pyarrow.parquet

        self._path, self._temporary = path, path.with_name(f".{path.name}.partial")
        self._schema = _schema(header)
        self._rows: list[RequestTrace] = []
        with self._reported():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pyarrow.parquet.ParquetWriter(
                self._temporary, self._schema, compression="zstd", write_page_checksum=True
            )

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                with self._reported():
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
        found = {name: [getattr(row, name) for row in self._rows] for name in PLAIN}
        found["drafted"] = [row.drafted.ravel() for row in self._rows]
        for index, name in enumerate(STATISTICS):
            found[name] = [row.statistics[..., index : index + 1].ravel() for row in self._rows]
        with self._reported():
            self._writer.write_table(pyarrow.table(found, schema=self._schema))
        self._rows.clear()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SkitError(f"cannot write {self._path}: {error.strerror or error}") from error


def _schema(header: TraceHeader) -> "pyarrow.Schema":
    content = {"schema_version": SCHEMA_VERSION, **asdict(header)}
    return columns().with_metadata({METADATA: json.dumps(content).encode()})
