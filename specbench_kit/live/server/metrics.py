"""The server's metrics: counters for Prometheus and the status line of the terminal."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

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
        self.rounds = Counter("skit_rounds", "Rounds verified.", registry=registry)
        self.tokens = Counter("skit_committed_tokens", "Tokens committed.", registry=registry)
        self.degraded = Counter(
            "skit_degraded_rounds", "Rounds whose draft was not verified because of overload.", registry=registry
        )
        self.refused = Counter("skit_refused_frames", "Refused frames by status.", ["status"], registry=registry)
        self.sessions = Gauge("skit_sessions", "Sessions remembered.", registry=registry)
        self.streams = Gauge("skit_streams", "Devices connected.", registry=registry)
        self.waiting = Gauge("skit_waiting_rounds", "Rounds waiting in the queue.", registry=registry)
        self.evictions = Gauge(
            "skit_evictions", "Sessions whose KV was evicted to make room for another session.", registry=registry
        )
        self.queue_s = Histogram(
            "skit_queue_seconds", "Time from a round's arrival to its batch.", buckets=SECONDS, registry=registry
        )
        self.verify_s = Histogram("skit_verify_seconds", "Duration of a batch.", buckets=SECONDS, registry=registry)
        self.batch = Histogram("skit_batch_requests", "Requests in a batch.", buckets=SIZES, registry=registry)
        self._batches = self._requests = self._tokens = 0

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
        start_http_server(port, host, self.registry)
