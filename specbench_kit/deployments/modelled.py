"""Decoding under a deployment: the same drafts and verdicts, on timelines of edge, link and server."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from torch import Tensor

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.drafter import Draft, DraftSource
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import DraftForward
from specbench_kit.decoding.verification import Answer, Verdict, Verifier
from specbench_kit.deployments.base import Deployment


@dataclass(slots=True)
class _Client:
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
    device of its own at the far end of the link; `learned`: a predictor judges every drafted token.
    """

    def __init__(self, deployment: Deployment, clock: ModelledClock, *, on_edge: bool, learned: bool) -> None:
        self._drafter, self._verifier, self._link = deployment.drafter, deployment.verifier, deployment.link
        self._on_edge = on_edge
        self._decision_s = deployment.predictor_s if learned else 0.0
        self._cached_prompts = deployment.cached_prompts
        self.clock = clock
        self._clients: dict[str, _Client] = {}
        self._shared_free_s = 0.0
        """When the drafting device that all requests share is free."""

    def admit(self, session: Session) -> None:
        """Take in a request."""
        cached = len(session.tokens) - 1 if self._cached_prompts else 0
        name = session.request.id
        self._clients[name] = _Client(name, Random(f"{self._link.seed}/{name}"), cached, cached)

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
        rows = [_draft_row(client, *new) for client, new in zip(clients, frontier, strict=True)]
        if self._on_edge:
            seconds = [self._drafter.latency.seconds([row]) for row in rows]
            self.clock.charge("draft", sum(seconds), len(seconds))
        else:
            seconds = [self._drafter.latency.seconds(rows)] * len(rows)
            self.clock.charge("draft", seconds[0])
        self._work(self.clock.drafting, clients, seconds)
        if self._decision_s:
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
        self, clients: Sequence[_Client], arrivals_s: Sequence[float], start_s: float, end_s: float
    ) -> None:
        self.clock.mark("server", "verify", start_s, end_s, *(client.name for client in clients))
        for client, arrival_s in zip(clients, arrivals_s, strict=True):
            name = client.name
            self.clock.mark(f"link/{name}", "transfer", client.ready_s, arrival_s, name)
            self.clock.mark(f"server queue/{name}", "queue", arrival_s, start_s, name)
            self.clock.mark(f"link/{name}", "transfer", end_s, client.answer_s, name)

    def awaits(self, draft: Draft) -> bool:
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
        """Of the draft model's KV, the accepted nodes that it forwarded stay, and those below `kept`."""
        client = self._clients[draft.request_id]
        below = [] if kept is None else draft.tree.below(kept)
        client.draft_cached -= len(client.forwarded.difference(path, below, (0,)))
        client.forwarded = {new for new, node in enumerate(below) if node in client.forwarded}

    def _prefill(self, clients: Sequence[_Client], frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """New requests bring their prompts into the draft model's KV, one after the other on a shared device."""
        for client, (draft, _) in zip(clients, frontier, strict=True):
            if client.draft_cached or not (prefix := draft.context_length - 1):
                continue
            taken_s = self._drafter.latency.seconds([(prefix, 0)])
            self.clock.charge("prefill", taken_s)
            client.draft_cached = prefix
            waiting = [client] if self._on_edge else clients
            self._work("prefill", waiting, [taken_s] * len(waiting))

    def _work(self, label: str, clients: Sequence[_Client], seconds: Sequence[float]) -> None:
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

    def _send(self, client: _Client, verdict: Verdict) -> float:
        """Seconds of the message up: once the prompt, and from the edge the draft."""
        prompt, client.asked = 0 if client.asked else verdict.draft.context_length, True
        draft = len(verdict.submitted) if self._on_edge else 0
        return self._cross(client, prompt + draft, self._link.up_bytes_per_s, typical=not prompt)

    def _answer(self, client: _Client, verdict: Verdict) -> float:
        """Seconds of the message down."""
        return self._cross(client, len(verdict.path) + 1, self._link.down_bytes_per_s)

    def _cross_meanwhile(self, client: _Client, verdict: Verdict) -> None:
        """The prompt came up while the server was at work for others, and the answer goes down while it goes on."""
        session, name = verdict.draft.session, client.name
        up_s, down_s = self._send(client, verdict), self._answer(client, verdict)
        self.clock.mark(f"link/{name}", "transfer", session.arrival_s - up_s, session.arrival_s, name)
        self.clock.mark(f"link/{name}", "transfer", client.answer_s, client.answer_s + down_s, name)
        session.arrival_s -= up_s + down_s

    def _cross(self, client: _Client, tokens: int, bytes_per_s: float, *, typical: bool = True) -> float:
        """Seconds of one message, charged to the link."""
        seconds = self._link.message_s(tokens, bytes_per_s, client.random)
        self.clock.charge("link", seconds, typical=typical)
        return seconds


def _draft_row(client: _Client, draft: Draft, nodes: Sequence[int]) -> Row:
    """What a draft forward computes for a request, and what it has in KV before."""
    new = len(set(nodes).difference(client.forwarded, (0,)))
    if not client.forwarded:
        new += draft.context_length - client.draft_cached
    cached = client.draft_cached
    client.draft_cached += new
    client.forwarded.update(nodes, (0,))
    return new, cached


class TimedDrafter:
    """Any drafter, with the time that a deployment's would take."""

    def __init__(self, drafter: DraftSource, timelines: Timelines) -> None:
        self._drafter, self._timelines = drafter, timelines

    @property
    def drafts(self) -> list[Draft]:
        return self._drafter.drafts

    @property
    def clock(self) -> ModelledClock:
        return self._timelines.clock

    def awaits(self, draft: Draft) -> bool:
        """Whether the drafting device is free before the answer arrives."""
        return self._timelines.awaits(draft)

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        drafts = self._drafter.begin(sessions)
        self._timelines.begin(drafts)
        return drafts

    def room(self, draft: Draft) -> int:
        """Nodes that the tree can still take."""
        return self._drafter.room(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain; returns the drafts that had room for it."""
        grown = self._drafter.extend(drafts)
        if grown:
            self._timelines.draft([(draft, (draft.tree.last - 1,)) for draft in grown])
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes."""
        self._timelines.draft(frontier)
        return self._drafter.expand(frontier)

    def commit(self, draft: Draft, path: Sequence[int], kept: int | None = None, states: Tensor | None = None) -> None:
        """Take note of the accepted nodes."""
        self._timelines.drafted(draft, path, kept)
        self._drafter.commit(draft, path, kept, states)

    def release(self, session: Session) -> None:
        """Forget a finished request."""
        self._drafter.release(session)


class TimedVerifier:
    """Any verifier, with the time that a deployment's link and verifier would take."""

    def __init__(self, verifier: Verifier, timelines: Timelines) -> None:
        self._verifier, self._timelines = verifier, timelines
        self.apart = verifier.apart

    def admit(self, session: Session) -> None:
        """Make room for a new request."""
        self._timelines.admit(session)
        self._verifier.admit(session)

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> Answer:
        """Have the chosen nodes of every draft judged, at once; the timelines know when the answer is there."""
        verdicts = self._verifier.send(drafts, chosen)()
        rows = self._timelines.verify(verdicts)
        timed = [replace(verdict, weight=new) for verdict, (new, _) in zip(verdicts, rows, strict=True)]
        return lambda: timed

    def commit(self, verdict: Verdict) -> None:
        """Take note of the accepted nodes."""
        self._timelines.verified(verdict)
        self._verifier.commit(verdict)

    def release(self, session: Session) -> None:
        """Forget a finished request."""
        self._timelines.release(session)
        self._verifier.release(session)
