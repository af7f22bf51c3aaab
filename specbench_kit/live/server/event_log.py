"""The log of a server's events: streams and sessions with their ends, refusals, start and end."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from specbench_kit.core.errors import SkitError

MOST_BYTES = 64 << 20
"""Size at which the file is renamed to NAME.1, in place of an earlier one, so that no device can fill the disk."""


class EventLog:
    """Appends events to a file, one JSON object per line; without a file it drops them."""

    def __init__(self, path: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._file = self._open()

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the current time."""
        if self._file is None or self._path is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"at": at, "event": event, **fields}), file=self._file, flush=True)
        if self._file.tell() >= self._most_bytes:
            self._file.close()
            self._path.replace(f"{self._path}.1")
            self._file = self._open()

    def _open(self) -> TextIO | None:
        try:
            return None if self._path is None else self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise SkitError(f"cannot write the log {self._path}: {error.strerror}") from error
