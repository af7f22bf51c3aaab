"""Models when edge, link and server are busy in the rounds of a batch under a deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

from specbench_kit.decoding.clock import ModelledClock, Phase
from specbench_kit.decoding.drafter import Draft, PlannedRound
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import Verdict
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import DRAFTER, WorkLog
from specbench_kit.deployments.fastest_rounds import AnswerTimes, fastest_rounds
from specbench_kit.runs.document import HiddenStates

REMEMBERED = 1 << 16
"""Rows whose seconds are cached for plans of whole answers."""


@dataclass(slots=True)
class RequestTimeline:
    """The state of one request: the tokens in KV of either model, and the time at which its next
    step can begin.
    """

    name: str
    random: Random
    draft_cached: int = 0
    target_cached: int = 0
    forwarded: set[int] = field(default_factory=set)
    """The tree nodes that the draft model has forwarded in this round."""
    forwarded_s: dict[int, float] = field(default_factory=dict)
    """The times at which forwards of tree nodes ended, and their children were known."""
    server_continues: bool = False
    """True if the server decodes this round without waiting for a draft: no message crosses the
    link before it.
    """
    prompt_sent: bool = False
    """True once the prompt has crossed the link."""
    ready_s: float = 0.0
    """The time at which its drafting device is free."""
    answer_s: float = 0.0
    """The time at which the verdict of this round arrives."""


class Timelines:
    """The times at which edge, link and server are busy.

    The requests of a batch proceed in lockstep: a round ends with its slowest request. If only
    prompt and answer cross the link, a request that joins others pays for its messages in its own
    latency and delays nobody. With `on_edge`, every request has a drafting device of its own at the
    far end of the link; with `learned`, a predictor scores every drafted token; `states` are the
    hidden states that the drafter reads.

    The tokens of a verdict are there when it arrives. A device that drafts ahead finishes the
    forward that is then under way, and can begin the next draft only after it.
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
        self._drafter = deployment.drafter
        self._verifier = deployment.verifier
        self._link = deployment.link
        self._on_edge = on_edge
        self._states = states
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self._cached_prompts = deployment.cached_prompts
        # Plans of different requests ask for the same rows.
        self._step_s = lru_cache(REMEMBERED)(lambda row: self._drafter.latency.seconds([row]))
        self._pass_s = lru_cache(REMEMBERED)(lambda row: self._verifier.pass_s([row]))
        self.clock = clock
        self.log: WorkLog | None = None
        """Collects the work of drafting, where a simulation asks for it."""
        self._requests: dict[str, RequestTimeline] = {}
        self._shared_free_s = 0.0
        """The time at which the drafting device that all requests share is free."""
        self._verified_s = 0.0
        """The time at which the last verification ended."""

    def admit(self, session: Session) -> None:
        """Add a request."""
        cached = len(session.tokens) - 1 if self._cached_prompts else 0
        name = session.request.id
        self._requests[name] = RequestTimeline(
            name, Random(f"{self._link.seed}/{name}"), cached, cached
        )

    def release(self, session: Session) -> None:
        """Remove a request."""
        del self._requests[session.request.id]

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Start a round of these drafts."""
        for draft in drafts:
            request = self._requests[draft.request_id]
            request.answer_s = self.clock.now_s()
            # A forward ahead of the verdict that was under way when it arrived is finished before
            # the next one begins.
            request.ready_s = max(request.ready_s, request.answer_s)
            if self.log is not None:
                self.log.begin(draft.request_id, draft.context_length)

    def draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """Charge one batched draft forward of tree nodes, and the decision about the tokens that it
        yields.
        """
        requests = [self._requests[draft.request_id] for draft, _ in frontier]
        self._prefill(requests, frontier)
        rows = {draft.request_id: self._draft_row(draft, nodes) for draft, nodes in frontier}
        self.forward("draft", rows, self._drafter.latency)
        for request, (_, nodes) in zip(requests, frontier, strict=True):
            request.forwarded_s |= dict.fromkeys(nodes, request.ready_s)
        self.decide([draft for draft, _ in frontier])

    def forward(
        self, phase: Phase, rows: Mapping[str, Row], latency: LatencyModel, model: str = DRAFTER
    ) -> None:
        """Charge a batched forward of a drafting model, of the rows by request."""
        if phase == "prefill" and self._cached_prompts:
            return
        if self.log is not None:
            self.log.forward(model, phase, rows)
        if self._on_edge:
            seconds = [latency.seconds([row]) for row in rows.values()]
            self.clock.charge(phase, sum(seconds), len(seconds))
        else:
            seconds = [latency.seconds([*rows.values()])] * len(rows)
            self.clock.charge(phase, seconds[0])
        label = self.clock.drafting if phase == "draft" else phase
        self._work(label, [self._requests[name] for name in rows], seconds)

    def decide(self, drafts: Sequence[Draft]) -> None:
        """Charge a learned method's decision about the token that each of these drafts has
        gained.
        """
        if not drafts or not self._decision_s:
            return
        if self.log is not None:
            for draft in drafts:
                self.log.decide(draft.request_id)
        requests = [self._requests[draft.request_id] for draft in drafts]
        decided_s = self._decision_s if self._on_edge else self._decision_s * len(requests)
        self._work("policy", requests, [decided_s] * len(requests))
        self.clock.charge("policy", self._decision_s * len(requests))

    def verify(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """Charge the way up, the wait for the batch, one verification and the way down; return the
        target's rows.
        """
        requests = [self._requests[verdict.draft.request_id] for verdict in verdicts]
        rows = [
            (
                verdict.draft.context_length - request.target_cached + len(verdict.submitted),
                request.target_cached,
            )
            for request, verdict in zip(requests, verdicts, strict=True)
        ]
        pairs = list(zip(requests, verdicts, strict=True))
        crosses = self._waits_for_drafts(pairs) or not any(
            request.prompt_sent for request in requests
        )
        if self.log is not None:
            for request in requests:
                self.log.send(request.name, crosses=crosses)
        sent_s = [self._sent_s(request, verdict) for request, verdict in pairs]
        arrivals_s = [
            time_s
            + (
                self._send(request, verdict)
                if crosses and not self._goes_on(request, verdict)
                else 0.0
            )
            for time_s, (request, verdict) in zip(sent_s, pairs, strict=True)
        ]
        start_s = max(self._verified_s, *arrivals_s)
        self.clock.charge("queue", sum(start_s - arrival_s for arrival_s in arrivals_s))
        verify_s = self._verifier.pass_s(rows)
        warm = all(
            request.target_cached or verdict.draft.context_length == 1 for request, verdict in pairs
        )
        self.clock.charge("verify", verify_s, typical=warm)
        self._verified_s = start_s + verify_s
        for request, verdict in pairs:
            request.answer_s = (
                start_s + verify_s + (self._answer(request, verdict) if crosses else 0.0)
            )
            if not request.prompt_sent:
                self._charge_joining(request, verdict)
            request.server_continues = verdict.draft.tree.server_continues
        if self.clock.timeline is not None:
            self._mark_verification(requests, sent_s, arrivals_s, start_s, start_s + verify_s)
        return rows

    def _goes_on(self, request: RequestTimeline, verdict: Verdict) -> bool:
        """Return whether the server computes the next token by itself, without a message that asks
        for it.
        """
        return verdict.draft.tree.sent_early and request.prompt_sent and not verdict.submitted

    def _sent_s(self, request: RequestTimeline, verdict: Verdict) -> float:
        """Return when the draft was sent: at the end of drafting, or earlier if this round began
        with all of it.
        """
        tree = verdict.draft.tree
        if self._goes_on(request, verdict):
            return self._verified_s
        if not (tree.sent_early and verdict.submitted and max(verdict.submitted) <= tree.inherited):
            return request.ready_s
        return max(
            request.forwarded_s.get(tree.parents[node], request.ready_s)
            for node in verdict.submitted
        )

    def _waits_for_drafts(self, pairs: Sequence[tuple[RequestTimeline, Verdict]]) -> bool:
        """Return whether the server has to wait for the drafts of this round, and the devices for
        its answer.

        The first round that the server is left with is charged for both messages. The tokens of
        those that follow are streamed, and arrive as far apart as they are decoded.
        """
        continued = any(request.server_continues for request, _ in pairs)
        return self._on_edge and not (
            continued and not any(verdict.submitted for _, verdict in pairs)
        )

    def _mark_verification(
        self,
        requests: Sequence[RequestTimeline],
        sent_s: Sequence[float],
        arrivals_s: Sequence[float],
        start_s: float,
        end_s: float,
    ) -> None:
        self.clock.mark("server", "verify", start_s, end_s, *(request.name for request in requests))
        for request, time_s, arrival_s in zip(requests, sent_s, arrivals_s, strict=True):
            name = request.name
            self.clock.mark(f"link/{name}", "transfer", time_s, arrival_s, name)
            self.clock.mark(f"server queue/{name}", "queue", arrival_s, start_s, name)
            self.clock.mark(f"link/{name}", "transfer", end_s, request.answer_s, name)

    def awaits_answer(self, draft: Draft) -> bool:
        """Return whether the drafting device is free before the answer arrives."""
        request = self._requests[draft.request_id]
        return request.ready_s < request.answer_s

    def has_reached_server(self, draft: Draft, node: int) -> bool:
        """Return whether a node, sent when it was drafted, was at the server when its last
        verification ended.

        A message takes its time without jitter and loss here, which it is charged with.
        """
        request = self._requests[draft.request_id]
        drafted_s = request.forwarded_s.get(draft.tree.parents[node])
        if drafted_s is None:
            return False
        link = self._link if self._on_edge else None
        crossing_s = (
            link.nominal_s(node, link.up_bytes_per_s, node * link.draft_bytes) if link else 0.0
        )
        return drafted_s + crossing_s <= self._verified_s

    def fastest_rounds(
        self, draft: Draft, right: Sequence[int], *, server_decodes: bool
    ) -> dict[int, PlannedRound]:
        """Return the fastest rounds for the rest of an answer, as if its request were decoded
        alone.

        `right` tokens of a draft at each offset are right; with `server_decodes`, rounds may be left to the server.
        """
        request = self._requests[draft.request_id]
        times = AnswerTimes(
            context=draft.context_length,
            draft_cached=request.draft_cached,
            target_cached=request.target_cached,
            prompt_sent=request.prompt_sent,
            step_s=self._step_s,
            pass_s=self._pass_s,
            decision_s=self._decision_s,
            link=self._link,
            on_edge=self._on_edge,
            state_bytes=self._states.bytes_per_token if self._states else None,
        )
        return fastest_rounds(times, right, server_decodes=server_decodes and self._on_edge)

    def verified(self, verdict: Verdict) -> None:
        """Let the time pass until the answer has arrived: its tokens do not wait for a device that
        drafts ahead.
        """
        request = self._requests[verdict.draft.request_id]
        if self.log is not None:
            self.log.end(request.name)
        # The last committed token is never in KV: it is the first input of the next round.
        request.target_cached = verdict.draft.context_length - 1
        if self._on_edge and self.clock.timeline is not None and request.ready_s < request.answer_s:
            self.clock.mark(
                f"edge/{request.name}", "stall", request.ready_s, request.answer_s, request.name
            )
        self.clock.wait_until(request.answer_s)

    def drafted(self, draft: Draft, path: Sequence[int], kept: int | None) -> None:
        """Keep the forwarded nodes on the accepted `path` and those below the node `kept` in the
        draft model's KV.

        A drafter that reads hidden states forwards accepted nodes again, unless its tree is
        continued below `kept`.
        """
        request = self._requests[draft.request_id]
        below = [] if kept is None else draft.tree.below(kept)
        path = () if kept is None and self._states else path
        request.draft_cached -= len(request.forwarded.difference(path, below, (0,)))
        request.forwarded = {new for new, node in enumerate(below) if node in request.forwarded}
        times_s = request.forwarded_s
        request.forwarded_s = {
            new: times_s[node] for new, node in enumerate(below) if node in times_s
        }

    def _prefill(
        self, requests: Sequence[RequestTimeline], frontier: Sequence[tuple[Draft, Sequence[int]]]
    ) -> None:
        """Compute the prompts of new requests in the draft model, one after the other on a shared
        device.
        """
        for request, (draft, _) in zip(requests, frontier, strict=True):
            if request.draft_cached or not (prefix := draft.context_length - 1):
                continue
            if self.log is not None:
                self.log.forward(DRAFTER, "prefill", {request.name: (prefix, 0)})
            prefill_s = self._drafter.latency.seconds([(prefix, 0)])
            self.clock.charge("prefill", prefill_s)
            request.draft_cached = prefix
            waiting = [request] if self._on_edge else requests
            self._work("prefill", waiting, [prefill_s] * len(waiting))

    def _work(
        self, label: str, requests: Sequence[RequestTimeline], seconds: Sequence[float]
    ) -> None:
        """Keep the drafting devices busy: each request's own for its seconds, or the one that all
        share.
        """
        if self._on_edge:
            for request, work_s in zip(requests, seconds, strict=True):
                end_s = request.ready_s + work_s
                if self.clock.timeline is not None:
                    self.clock.mark(
                        f"edge/{request.name}", label, request.ready_s, end_s, request.name
                    )
                request.ready_s = end_s
            return
        start_s = max(self._shared_free_s, *(request.ready_s for request in requests))
        self._shared_free_s = start_s + max(seconds)
        if self.clock.timeline is not None:
            self.clock.mark(
                "drafter",
                label,
                start_s,
                self._shared_free_s,
                *(request.name for request in requests),
            )
        for request in requests:
            request.ready_s = self._shared_free_s

    def _draft_row(self, draft: Draft, nodes: Sequence[int]) -> Row:
        request = self._requests[draft.request_id]
        new = len(set(nodes).difference(request.forwarded, (0,)))
        if not request.forwarded:
            new += draft.context_length - request.draft_cached
        cached = request.draft_cached
        request.draft_cached += new
        request.forwarded.update(nodes, (0,))
        return new, cached

    def _send(self, request: RequestTimeline, verdict: Verdict) -> float:
        """Return the seconds of the message up: the prompt once, and the draft if it comes from the
        edge.
        """
        prompt = 0 if request.prompt_sent else verdict.draft.context_length
        request.prompt_sent = True
        draft = len(verdict.submitted) if self._on_edge else 0
        own_bytes = verdict.draft.tree.payload_bytes
        up = self._link.up_bytes_per_s
        payload_bytes = (
            draft * self._link.draft_bytes if own_bytes is None or not draft else own_bytes
        )
        return self._cross(
            request, prompt + draft, up, more_bytes=payload_bytes, typical=not prompt
        )

    def _answer(self, request: RequestTimeline, verdict: Verdict) -> float:
        """Return the seconds of the message down, with the new hidden states if the drafter reads
        them.
        """
        new_tokens = verdict.draft.context_length - request.target_cached + len(verdict.path)
        states_bytes = new_tokens * self._states.bytes_per_token if self._states else 0.0
        typical = not states_bytes or request.target_cached > 0
        tokens = len(verdict.path) + 1
        bytes_per_s = self._link.down_bytes_per_s
        return self._cross(request, tokens, bytes_per_s, more_bytes=states_bytes, typical=typical)

    def _charge_joining(self, request: RequestTimeline, verdict: Verdict) -> None:
        """Charge the messages of a request that joins others: they cross the link while the server
        works on.
        """
        session = verdict.draft.session
        name = request.name
        up_s = self._send(request, verdict)
        down_s = self._answer(request, verdict)
        self.clock.mark(
            f"link/{name}", "transfer", session.arrival_s - up_s, session.arrival_s, name
        )
        self.clock.mark(
            f"link/{name}", "transfer", request.answer_s, request.answer_s + down_s, name
        )
        # Its prompt was sent before the round, and its answer arrives after it. Both count in its
        # latency without moving the clock that all requests share, so its arrival moves back
        # instead.
        self.backdate_arrival(session, up_s + down_s)

    def backdate_arrival(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request back by so many seconds."""
        session.arrival_s -= seconds

    def _cross(
        self,
        request: RequestTimeline,
        tokens: int,
        bytes_per_s: float | None,
        *,
        more_bytes: float = 0.0,
        typical: bool = True,
    ) -> float:
        """Charge one message to the link, and return its seconds."""
        seconds = self._link.message_s(tokens, bytes_per_s, request.random, more_bytes)
        self.clock.charge("link", seconds, typical=typical)
        return seconds
