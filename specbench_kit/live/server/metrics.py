"""What the server counts, for Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from specbench_kit.live.server.activity import ActivityCounter
from specbench_kit.live.server.batches import VerifiedRound

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tally = ActivityCounter()
        named: Any = {"registry": self.registry, "namespace": "skit"}
        self.rounds = Counter("rounds", "Rounds verified.", **named)
        self.tokens = Counter("committed_tokens", "Tokens committed.", **named)
        self.degraded = Counter("degraded_rounds", "Rounds without their draft, since the server was behind.", **named)
        self.refused = Counter("refused_frames", "Frames that were refused.", ["status"], **named)
        self.sessions = Gauge("sessions", "Sessions held.", **named)
        self.streams = Gauge("streams", "Devices connected.", **named)
        self.waiting = Gauge("waiting_rounds", "Rounds in line.", **named)
        self.evictions = Gauge("evictions", "Sessions whose KV made room for another's.", **named)
        self.queue_s = Histogram("queue_seconds", "From arrival to verification.", buckets=SECONDS, **named)
        self.verify_s = Histogram("verify_seconds", "Of a batch.", buckets=SECONDS, **named)
        self.batch = Histogram("batch_requests", "Requests of a batch.", buckets=SIZES, **named)

    def count(self, done: list[VerifiedRound]) -> None:
        """A batch."""
        if not done:
            return
        self.batch.observe(len(done))
        self.verify_s.observe(done[0].batch.verify_s)
        self.rounds.inc(len(done))
        self.degraded.inc(sum(one.job.degraded for one in done))
        tokens = sum(len(one.verdict.tokens) for one in done if one.verdict)
        self.tokens.inc(tokens)
        self.tally.batches += 1
        self.tally.requests += len(done)
        self.tally.tokens += tokens
        for one in done:
            self.queue_s.observe(one.queue_s)

    def serve(self, host: str, port: int) -> None:
        """Answer Prometheus."""
        start_http_server(port, host, self.registry)
