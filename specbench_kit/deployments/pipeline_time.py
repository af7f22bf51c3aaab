"""The time of a pipeline's steps under a deployment."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from specbench_kit.decoding.clock import ModelledClock, Phase
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.session import Session
from specbench_kit.deployments.base import Deployment
from specbench_kit.runs.document import HiddenStates


class PipelineTime:
    """The clock of a pipeline whose stages and drafter work in parallel.

    A step takes as long as the slowest of them, and then pruning and the hand-over. Requests that
    enter together are one batch in every stage. Without `drafts` there is no drafter.
    """

    def __init__(
        self,
        deployment: Deployment,
        clock: ModelledClock,
        *,
        drafts: bool = True,
        states: HiddenStates | None = None,
    ) -> None:
        self._drafter = deployment.drafter
        self._verifier = deployment.verifier
        self._link = deployment.link
        self._on_edge = deployment.placement == "edge"
        self._cached_prompts = deployment.cached_prompts
        self._clock = clock
        self._drafts = drafts
        self._state_bytes = states.bytes_per_token if states else 0.0
        self._randoms: dict[str, Random] = {}
        self._prompts_sent: set[str] = set()
        """The requests whose prompts have crossed the link."""

    def admit(self, session: Session) -> None:
        """Add a new request."""
        name = session.request.id
        self._randoms[name] = Random(f"{self._link.seed}/{name}")

    def release(self, session: Session) -> None:
        """Remove a request."""
        del self._randoms[session.request.id]
        self._prompts_sent.discard(session.request.id)

    def step(
        self, streams: Sequence[RequestStream], forwards: Sequence[Sequence[Row]] | None = None
    ) -> None:
        """Let the time of one step pass; without `forwards`, the drafter forwards the levels that
        enter.
        """
        start_s = self._clock.now_s()
        hand_over = self._verifier.hand_over
        rows = self._rows(streams)
        stage_s = {
            stage: self._verifier.latency.seconds(batch) / self._verifier.stages
            for stage, batch in rows.items()
        }
        drafting: Phase = "prefill" if any(stream.level.prefix for stream in streams) else "draft"
        drafted = [rows[1]] if forwards is None and 1 in rows else forwards or ()
        draft_s = sum(map(self._drafter.latency.seconds, drafted)) if self._drafts else 0.0
        tokens = max(map(_new_tokens, rows.values()), default=0)
        link_s = hand_over.seconds(tokens) + self._messages_s(streams)
        between_s = hand_over.prune_s + hand_over.batching_s * (len(streams) - 1)
        self._clock.charge(drafting, draft_s)
        self._clock.charge("verify", max(stage_s.values(), default=0.0))
        self._clock.charge("link", link_s)
        self._clock.charge("commit", between_s)
        worked_s = start_s + max(draft_s, *stage_s.values(), 0.0)
        self._mark(streams, stage_s, start_s, worked_s, worked_s + between_s)
        names = [stream.session.request.id for stream in streams]
        self._clock.mark("drafter", drafting, start_s, start_s + draft_s, *names)
        self._clock.mark(
            "link", "transfer", worked_s + between_s, worked_s + between_s + link_s, *names
        )
        self._clock.wait_until(worked_s + between_s + link_s)

    def _mark(
        self,
        streams: Sequence[RequestStream],
        stage_s: Mapping[int, float],
        start_s: float,
        worked_s: float,
        pruned_s: float,
    ) -> None:
        names = [stream.session.request.id for stream in streams]
        for stage in range(1, self._verifier.stages + 1):
            done_s = start_s + stage_s.get(stage, 0.0)
            self._clock.mark(f"stage/{stage}", "verify", start_s, done_s, *names)
            self._clock.mark(f"stage/{stage}", "stall", done_s, worked_s, *names)
            self._clock.mark(f"stage/{stage}", "prune", worked_s, pruned_s, *names)

    def _rows(self, streams: Sequence[RequestStream]) -> dict[int, list[Row]]:
        """Return the rows of each stage that has work: new tokens, and tokens in KV before them."""
        rows: dict[int, list[Row]] = {}
        for stream in streams:
            for stage, row in self._rows_of(stream):
                rows.setdefault(stage, []).append(row)
        return rows

    def _rows_of(self, stream: RequestStream) -> Iterator[tuple[int, Row]]:
        """Yield each stage with the row of one request, from the last stage to the first.

        The tokens that are in a stage have been computed by no stage after it, and by all before
        it.
        """
        flight = stream.flight
        context = len(stream.session.tokens) - 1
        entered = context - max(0, len(stream.to_enter) - 1)
        cached = context if self._cached_prompts else entered - flight.prefix
        for stage in range(len(flight.sizes), 0, -1):
            prefix = 0 if self._cached_prompts else flight.prefixes[stage - 1]
            if new := flight.sizes[stage - 1] + prefix:
                yield stage, (new, cached)
                cached += new

    def _messages_s(self, streams: Sequence[RequestStream]) -> float:
        """Return the seconds that the step waits for the link.

        With the drafter on the edge, every level and every answer crosses it. Else only a prompt
        and its first answer do; if the request joins others, its arrival is moved back instead, so
        that it delays nobody else.
        """
        if self._on_edge:
            return max(self._message_s(stream) for stream in streams)
        joining = [
            stream for stream in streams if stream.session.request.id not in self._prompts_sent
        ]
        if joining and len(joining) == len(streams):
            return max(self._message_s(stream) for stream in joining)
        for stream in joining:
            self.backdate_arrival(stream.session, self._message_s(stream))
        return 0.0

    def backdate_arrival(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request back by so many seconds."""
        session.arrival_s -= seconds

    def _message_s(self, stream: RequestStream) -> float:
        """Return the seconds of a prompt or level up, and of an answer with its hidden states
        down.
        """
        name = stream.session.request.id
        sent = name in self._prompts_sent
        self._prompts_sent.add(name)
        tokens = len(stream.level.tokens) if sent else len(stream.session.tokens)
        random = self._randoms[name]
        up_s = self._link.message_s(tokens, self._link.up_bytes_per_s, random)
        states = self._state_bytes * (stream.flight.prefixes[-1] + stream.flight.root_in_last_stage)
        return up_s + self._link.message_s(1, self._link.down_bytes_per_s, random, states)


def _new_tokens(batch: Sequence[Row]) -> int:
    return sum(new for new, _ in batch)
