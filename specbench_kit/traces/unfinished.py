"""A trace that is being recorded: one file per request in a folder beside it, with which a later recording goes on."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench_kit.core.errors import SkitError, require
from specbench_kit.traces.trace import RequestTrace, TraceFile, TraceHeader
from specbench_kit.traces.writing import TraceWriter

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

    def make_folder(self) -> None:
        """Make the folder, so that a place that cannot be written is an error before anything is recorded."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SkitError(f"cannot write {self._path}: {error.strerror or error}") from error

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
        name for name in ("max_draft", "drafter", "capacity", "trees") if getattr(stored, name) != getattr(header, name)
    ]
    if parts:
        raise SkitError(
            f"the interrupted recording of {path} has another {' and '.join(parts)}: record with the same options, or "
            "to another --out"
        )
