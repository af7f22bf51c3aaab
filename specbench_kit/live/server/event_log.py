"""The log of a server's events: streams that begin, refusals, start and end."""

import json
from datetime import UTC, datetime
from pathlib import Path

from specbench_kit.core.errors import SkitError


class EventLog:
    """Appends events to a file, one JSON object per line; without a file it drops them."""

    def __init__(self, path: Path | None = None) -> None:
        try:
            self._file = None if path is None else path.open("a", encoding="utf-8")
        except OSError as error:
            raise SkitError(f"cannot write the log {path}: {error.strerror}") from error

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the current time."""
        if self._file is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"at": at, "event": event, **fields}), file=self._file, flush=True)
