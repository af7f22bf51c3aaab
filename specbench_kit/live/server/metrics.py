"""What a server tells of itself: counters for Prometheus, the status line of the terminal, and a
log of events.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.live.server.rounds import VerifiedRound

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """The state of a server, with rates over the last second or so."""

    streams: int
    sessions: int
    waiting: int
    tokens_per_s: float
    requests_per_batch: float

    def __str__(self) -> str:
        return (
            f"{self.streams} devices, {self.sessions} sessions, {self.waiting} rounds waiting, "
            f"{self.requests_per_batch:.1f} requests per batch, {self.tokens_per_s:.0f} tokens/s"
        )


class ServerMetrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._add_counters(registry)
        self._add_gauges(registry)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self.queue_s = Histogram(
            "skit_queue_seconds",
            "Time from a round's arrival to its batch.",
            buckets=SECONDS,
            registry=registry,
        )
        self.verify_s = Histogram(
            "skit_verify_seconds", "Duration of a batch.", buckets=SECONDS, registry=registry
        )
        self.batch = Histogram(
            "skit_batch_requests", "Requests in a batch.", buckets=SIZES, registry=registry
        )
        self._batches = self._requests = self._tokens = self._evictions = 0

    def _add_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"skit_{name}", help_text, labels, registry=registry)

        self.rounds = counter("rounds", "Rounds verified.")
        self.failed = counter("failed_rounds", "Rounds whose verification raised an error.")
        self.degraded = counter(
            "degraded_rounds", "Rounds whose draft was not verified because of overload."
        )
        self.stale = counter(
            "stale_drafts",
            "Drafts sent ahead that were dropped, since the text came out otherwise.",
        )
        self.drafted = counter("drafted_tokens", "Draft tokens of verified rounds.")
        self.accepted = counter("accepted_tokens", "Draft tokens that the target accepted.")
        self.tokens = counter("committed_tokens", "Tokens committed, the target's own included.")
        self.computed = counter(
            "computed_tokens", "Tokens that the target computed, prompts included."
        )
        self.evictions = counter(
            "evictions", "Sessions whose KV was evicted to make room for another session."
        )
        self.relieved = counter(
            "silent_devices", "Times that the server went on by itself for a silent device."
        )
        self.paused = counter(
            "paused_reads", "Times that a stream was not read for a while because it sent too much."
        )
        self.refused = counter("refused_frames", "Refused frames and streams by status.", "status")

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, help_text: str) -> Gauge:
            return Gauge(f"skit_{name}", help_text, registry=registry)

        self.sessions = gauge("sessions", "Sessions remembered.")
        self.streams = gauge("streams", "Devices connected.")
        self.waiting = gauge("waiting_rounds", "Rounds waiting in the queue.")
        self.slots = gauge("kv_slots_used", "Sessions whose KV is held.")
        self.most_slots = gauge("kv_slots", "Sessions whose KV can be held at a time.")

    def evicted(self, total: int) -> None:
        """Count the evictions since the last call; `total` are all so far."""
        self.evictions.inc(total - self._evictions)
        self._evictions = total

    def count(self, batch: list[VerifiedRound]) -> None:
        """Count the rounds of a verified batch."""
        if not batch:
            return
        self.batch.observe(len(batch))
        self.verify_s.observe(batch[0].batch.verify_s)
        self.rounds.inc(len(batch))
        self.degraded.inc(sum(verified.pending.degraded for verified in batch))
        tokens = sum(len(verified.tokens) for verified in batch)
        self.tokens.inc(tokens)
        for verified in batch:
            self.queue_s.observe(verified.queue_s)
            if (verdict := verified.verdict) is None:
                self.failed.inc()
                continue
            self.drafted.inc(verdict.draft.tree.drafted)
            self.accepted.inc(len(verdict.path))
            self.computed.inc(verdict.computed)
        self._batches, self._requests, self._tokens = (
            self._batches + 1,
            self._requests + len(batch),
            self._tokens + tokens,
        )

    def rates(self, seconds: float) -> tuple[float, float]:
        """Return tokens per second and requests per batch since the last call, `seconds` ago."""
        rates = self._tokens / seconds, self._requests / self._batches if self._batches else 0.0
        self._batches = self._requests = self._tokens = 0
        return rates

    def serve(self, host: str, port: int) -> None:
        """Answer Prometheus over HTTP, from a thread of its own."""
        try:
            start_http_server(port, host, self.registry)
        except OSError as error:
            raise SkitError(
                f"--metrics: cannot listen on {host}:{port}: {error.strerror}"
            ) from error


MOST_BYTES = 64 << 20
"""Size at which the file is renamed to NAME.1, in place of an earlier one, so that no device can
fill the disk.
"""


class EventLog:
    """Appends events to a file, one JSON object per line; without a file it drops them."""

    def __init__(self, path: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
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
