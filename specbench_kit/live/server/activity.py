"""What happened at a server's door, one JSON object a line, and how it is doing."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from specbench_kit.core.errors import SkitError


class EventLog:
    """Events with their moment; without a file they are not kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = None if path is None else _open(path)

    def note(self, event: str, **fields: Any) -> None:
        """Keep one event."""
        if self._file is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"at": at, "event": event, **fields}), file=self._file, flush=True)


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """A server over the last second or so."""

    streams: int
    sessions: int
    waiting: int
    tokens_per_s: float
    requests_per_batch: float

    def __str__(self) -> str:
        return (
            f"{self.streams} devices, {self.sessions} sessions, {self.waiting} rounds waiting, "
            f"{self.requests_per_batch:.1f} requests a batch, {self.tokens_per_s:.0f} tokens/s"
        )


@dataclass
class ActivityCounter:
    """Counts since it was last asked."""

    batches: int = 0
    requests: int = 0
    tokens: int = 0

    def per_second(self, seconds: float) -> tuple[float, float]:
        """Tokens per second and requests per batch, and begin anew."""
        found = self.tokens / seconds, self.requests / self.batches if self.batches else 0.0
        self.batches = self.requests = self.tokens = 0
        return found


def _open(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise SkitError(f"cannot write the log {path}: {error.strerror}") from error
