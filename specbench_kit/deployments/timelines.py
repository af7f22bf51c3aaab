"""When edge, link and server are busy in a round under a deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from specbench_kit.decoding.clock import ModelledClock, Phase
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.base import Deployment, HiddenStates


@dataclass(slots=True)
class RequestTimeline:
    """One request: what either model has in KV, and when its next step can begin."""

    name: str
    random: Random
    draft_cached: int = 0
    target_cached: int = 0
    forwarded: set[int] = field(default_factory=set)
    """Tree nodes that the draft model forwarded in this round."""
    asked: bool = False
    """Whether the prompt has crossed the link."""
    ready_s: float = 0.0
    """When its drafting device is free."""
    answer_s: float = 0.0
    """When the verdict of this round arrives."""


class Timelines:
    """When edge, link and server are busy.

    Requests of a batch go in step: a round ends with its slowest. Where only prompt and answer cross the link, those
    of a request that joins others count in its own latency and hold nobody up. `on_edge`: every request has a drafting
    device of its own at the far end of the link; `learned`: a predictor judges every drafted token; `states` are those
    that the drafter reads.
    """

    def __init__(
        self,
        deployment: Deployment,
        clock: ModelledClock,
        *,
        on_edge: bool,
        learned: bool,
        states: HiddenStates | None = None,
    ) -> None:
        self._drafter, self._verifier, self._link = deployment.drafter, deployment.verifier, deployment.link
        self._on_edge, self._states = on_edge, states
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self._cached_prompts = deployment.cached_prompts
        self.clock = clock
        self._clients: dict[str, RequestTimeline] = {}
        self._shared_free_s = 0.0
        """When the drafting device that all requests share is free."""

    def admit(self, session: Session) -> None:
        """Take in a request."""
        cached = len(session.tokens) - 1 if self._cached_prompts else 0
        name = session.request.id
        self._clients[name] = RequestTimeline(name, Random(f"{self._link.seed}/{name}"), cached, cached)

    def release(self, session: Session) -> None:
        """Forget a request."""
        del self._clients[session.request.id]

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Start a round."""
        for draft in drafts:
            client = self._clients[draft.request_id]
            client.ready_s = client.answer_s = self.clock.now_s()

    def draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """One batched draft forward of tree nodes, and a decision about what it yields."""
        clients = [self._clients[draft.request_id] for draft, _ in frontier]
        self._prefill(clients, frontier)
        rows = {draft.request_id: self._draft_row(draft, nodes) for draft, nodes in frontier}
        self.forward("draft", rows, self._drafter.latency)
        self.decide([draft for draft, _ in frontier])

    def forward(self, phase: Phase, rows: Mapping[str, Row], latency: LatencyModel) -> None:
        """A batched forward of a model that drafts, of these requests' rows."""
        if self._on_edge:
            seconds = [latency.seconds([row]) for row in rows.values()]
            self.clock.charge(phase, sum(seconds), len(seconds))
        else:
            seconds = [latency.seconds([*rows.values()])] * len(rows)
            self.clock.charge(phase, seconds[0])
        label = self.clock.drafting if phase == "draft" else phase
        self._work(label, [self._clients[name] for name in rows], seconds)

    def decide(self, drafts: Sequence[Draft]) -> None:
        """A learned method's decision about the token that each of these has gained."""
        if not drafts or not self._decision_s:
            return
        clients = [self._clients[draft.request_id] for draft in drafts]
        decided_s = self._decision_s if self._on_edge else self._decision_s * len(clients)
        self._work("policy", clients, [decided_s] * len(clients))
        self.clock.charge("policy", self._decision_s * len(clients))

    def verify(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """Up the link, wait for the batch, one verification, down the link; returns what the target computed."""
        clients = [self._clients[verdict.draft.request_id] for verdict in verdicts]
        rows = [
            (verdict.draft.context_length - client.target_cached + len(verdict.submitted), client.target_cached)
            for client, verdict in zip(clients, verdicts, strict=True)
        ]
        pairs = list(zip(clients, verdicts, strict=True))
        waits = self._on_edge or not any(client.asked for client in clients)
        arrivals_s = [client.ready_s + (self._send(client, verdict) if waits else 0.0) for client, verdict in pairs]
        start_s = max(arrivals_s)
        self.clock.charge("queue", sum(start_s - arrival_s for arrival_s in arrivals_s))
        verify_s = self._verifier.pass_s(rows)
        warm = all(client.target_cached or verdict.draft.context_length == 1 for client, verdict in pairs)
        self.clock.charge("verify", verify_s, typical=warm)
        for client, verdict in pairs:
            client.answer_s = start_s + verify_s + (self._answer(client, verdict) if waits else 0.0)
            if not client.asked:
                self._cross_meanwhile(client, verdict)
        if self.clock.timeline is not None:
            self._mark_verification(clients, arrivals_s, start_s, start_s + verify_s)
        return rows

    def _mark_verification(
        self, clients: Sequence[RequestTimeline], arrivals_s: Sequence[float], start_s: float, end_s: float
    ) -> None:
        self.clock.mark("server", "verify", start_s, end_s, *(client.name for client in clients))
        for client, arrival_s in zip(clients, arrivals_s, strict=True):
            name = client.name
            self.clock.mark(f"link/{name}", "transfer", client.ready_s, arrival_s, name)
            self.clock.mark(f"server queue/{name}", "queue", arrival_s, start_s, name)
            self.clock.mark(f"link/{name}", "transfer", end_s, client.answer_s, name)

    def awaits_answer(self, draft: Draft) -> bool:
        """Whether the drafting device is free before the answer arrives."""
        client = self._clients[draft.request_id]
        return client.ready_s < client.answer_s

    def verified(self, verdict: Verdict) -> None:
        """The answer is there; the last token of the output is never in KV."""
        client = self._clients[verdict.draft.request_id]
        client.target_cached = verdict.draft.context_length - 1
        if self._on_edge and self.clock.timeline is not None:
            self.clock.mark(f"edge/{client.name}", "stall", client.ready_s, client.answer_s, client.name)
        self.clock.wait_until(max(client.answer_s, client.ready_s))

    def drafted(self, draft: Draft, path: Sequence[int], kept: int | None) -> None:
        """Of the draft model's KV, the accepted nodes that it forwarded stay, and those below `kept`.

        A reader of states forwards accepted ones again, unless a tree goes on.
        """
        client = self._clients[draft.request_id]
        below = [] if kept is None else draft.tree.below(kept)
        path = () if kept is None and self._states else path
        client.draft_cached -= len(client.forwarded.difference(path, below, (0,)))
        client.forwarded = {new for new, node in enumerate(below) if node in client.forwarded}

    def _prefill(self, clients: Sequence[RequestTimeline], frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """New requests bring their prompts into the draft model's KV, one after the other on a shared device."""
        for client, (draft, _) in zip(clients, frontier, strict=True):
            if client.draft_cached or not (prefix := draft.context_length - 1):
                continue
            taken_s = self._drafter.latency.seconds([(prefix, 0)])
            self.clock.charge("prefill", taken_s)
            client.draft_cached = prefix
            waiting = [client] if self._on_edge else clients
            self._work("prefill", waiting, [taken_s] * len(waiting))

    def _work(self, label: str, clients: Sequence[RequestTimeline], seconds: Sequence[float]) -> None:
        """Drafting devices are busy for a while: each request's own, or the one that all share."""
        if self._on_edge:
            for client, taken_s in zip(clients, seconds, strict=True):
                end_s = client.ready_s + taken_s
                if self.clock.timeline is not None:
                    self.clock.mark(f"edge/{client.name}", label, client.ready_s, end_s, client.name)
                client.ready_s = end_s
            return
        start_s = max(self._shared_free_s, *(client.ready_s for client in clients))
        self._shared_free_s = start_s + max(seconds)
        if self.clock.timeline is not None:
            self.clock.mark("drafter", label, start_s, self._shared_free_s, *(client.name for client in clients))
        for client in clients:
            client.ready_s = self._shared_free_s

    def _draft_row(self, draft: Draft, nodes: Sequence[int]) -> Row:
        client = self._clients[draft.request_id]
        new = len(set(nodes).difference(client.forwarded, (0,)))
        if not client.forwarded:
            new += draft.context_length - client.draft_cached
        cached = client.draft_cached
        client.draft_cached += new
        client.forwarded.update(nodes, (0,))
        return new, cached

    def _send(self, client: RequestTimeline, verdict: Verdict) -> float:
        """Seconds of the message up: once the prompt, and from the edge the draft."""
        prompt, client.asked = 0 if client.asked else verdict.draft.context_length, True
        draft = len(verdict.submitted) if self._on_edge else 0
        beside, up = draft * self._link.draft_bytes, self._link.up_bytes_per_s
        return self._cross(client, prompt + draft, up, more_bytes=beside, typical=not prompt)

    def _answer(self, client: RequestTimeline, verdict: Verdict) -> float:
        """Seconds of the message down, with the hidden states of what the target newly keeps where they are read."""
        kept = verdict.draft.context_length - client.target_cached + len(verdict.path)
        states_bytes = kept * self._states.bytes_per_token if self._states else 0.0
        typical = not states_bytes or client.target_cached > 0
        tokens, bytes_per_s = len(verdict.path) + 1, self._link.down_bytes_per_s
        return self._cross(client, tokens, bytes_per_s, more_bytes=states_bytes, typical=typical)

    def _cross_meanwhile(self, client: RequestTimeline, verdict: Verdict) -> None:
        """The prompt came up while the server was at work for others, and the answer goes down while it goes on."""
        session, name = verdict.draft.session, client.name
        up_s, down_s = self._send(client, verdict), self._answer(client, verdict)
        self.clock.mark(f"link/{name}", "transfer", session.arrival_s - up_s, session.arrival_s, name)
        self.clock.mark(f"link/{name}", "transfer", client.answer_s, client.answer_s + down_s, name)
        self._came_before(session, up_s + down_s)

    def _came_before(self, session: Session, seconds: float) -> None:
        session.arrival_s -= seconds

    def _cross(
        self, client: RequestTimeline, tokens: int, bytes_per_s: float, *, more_bytes: float = 0.0, typical: bool = True
    ) -> float:
        """Seconds of one message, charged to the link."""
        seconds = self._link.message_s(tokens, bytes_per_s, client.random, more_bytes)
        self.clock.charge("link", seconds, typical=typical)
        return seconds
