"""How long the steps of a pipeline take under a deployment."""

from random import Random

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.flight import Flight, Level
from specbench_kit.decoding.session import Session
from specbench_kit.deployments.base import Deployment


class PipelineTime:
    """Stages and drafter work side by side; a step takes as long as the slowest, then pruning and the hand-over."""

    def __init__(self, deployment: Deployment, clock: ModelledClock) -> None:
        self._drafter, self._verifier, self._link = deployment.drafter, deployment.verifier, deployment.link
        self._on_edge, self._cached_prompts = deployment.placement == "edge", deployment.cached_prompts
        self._clock = clock
        self._randoms: dict[str, Random] = {}
        self._asked: set[str] = set()
        """Requests whose prompts have crossed the link."""

    def admit(self, session: Session) -> None:
        """Begin with a new request."""
        name = session.request.id
        self._randoms[name] = Random(f"{self._link.seed}/{name}")

    def release(self, session: Session) -> None:
        """Forget a request."""
        del self._randoms[session.request.id]
        self._asked.discard(session.request.id)

    def step(self, session: Session, flight: Flight, level: Level) -> None:
        """Let the time of one step pass, in which the drafter forwards the level that was fed."""
        start_s, rows = self._clock.now_s(), self._rows(session, flight)
        stage_s = {stage: self._verifier.latency.seconds([row]) / len(flight.sizes) for stage, row in rows.items()}
        draft_s = self._drafter.latency.seconds([rows[1]]) if level.tokens else 0.0
        hand_over = self._verifier.hand_over
        link_s = hand_over.seconds(max(new for new, _ in rows.values())) + self._messages_s(session, level)
        self._clock.charge("prefill" if level.prefix else "draft", draft_s)
        self._clock.charge("verify", max(stage_s.values()))
        self._clock.charge("link", link_s)
        self._clock.charge("commit", hand_over.prune_s)
        worked_s = start_s + max(draft_s, *stage_s.values())
        pruned_s = worked_s + hand_over.prune_s
        name, drafting = session.request.id, "prefill" if level.prefix else "draft"
        self._clock.mark("drafter", drafting, start_s, start_s + draft_s, name)
        for stage in range(1, len(flight.sizes) + 1):
            done_s = start_s + stage_s.get(stage, 0.0)
            self._clock.mark(f"stage/{stage}", "verify", start_s, done_s, name)
            self._clock.mark(f"stage/{stage}", "stall", done_s, worked_s, name)
            self._clock.mark(f"stage/{stage}", "prune", worked_s, pruned_s, name)
        self._clock.mark("link", "transfer", pruned_s, pruned_s + link_s, name)
        self._clock.wait_until(pruned_s + link_s)

    def _rows(self, session: Session, flight: Flight) -> dict[int, Row]:
        """What every stage that works computes, and the tokens that it has in KV before that."""
        rows, end, context = {}, len(flight), len(session.tokens) - 1
        prefix = 0 if self._cached_prompts else flight.prefix
        for stage, size in enumerate(flight.sizes, 1):
            end -= size
            if size:
                rows[stage] = (size, context + end) if end else (size + prefix, context - prefix)
        return rows

    def _messages_s(self, session: Session, level: Level) -> float:
        """What crosses the link: prompt and first answer, or with the drafter on the edge every level and answer."""
        name = session.request.id
        asked = name in self._asked
        if asked and not self._on_edge:
            return 0.0
        self._asked.add(name)
        tokens, random = len(level.tokens) if asked else len(session.tokens), self._randoms[name]
        up_s = self._link.message_s(tokens, self._link.up_bytes_per_s, random)
        return up_s + self._link.message_s(1, self._link.down_bytes_per_s, random)
