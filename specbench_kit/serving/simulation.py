"""The event loop: devices send rounds, the server verifies them in batches, answers go back.

Also here: drafting on the server by a method's own policy, which sees only how confident the draft model is.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from types import SimpleNamespace
from typing import cast

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method, Policy
from specbench_kit.serving.arrays import Integers
from specbench_kit.serving.devices import Devices
from specbench_kit.serving.execution import BatchExecution, Chunks, Drafted, RoundDrafting, VerificationOnly, rows_of
from specbench_kit.serving.memory import KvMemory
from specbench_kit.serving.network import ServerOverhead
from specbench_kit.serving.result import ResultRecorder, SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


def simulate(scenario: Scenario, seed: int = 0) -> SimulationResult:
    """Return everything that happens in a scenario; identical for equal seeds on every machine."""
    return Simulation(scenario, seed).run(scenario.duration_s)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch that the server processes; of clients in `chunks` only so many tokens are computed."""

    requests: list[WaitingRound]
    clients: Integers
    started_s: float
    ended_s: float
    drafted: Drafted
    chunks: Mapping[int, int]


class Simulation:
    """One server and its devices; `run` goes on where it stopped.

    Devices are arrays, and so is what they do. Only a round that waits at the server is an object, which schedulers
    see. Between two batches nothing happens on the server, so that the loop steps from batch to batch: arrivals during
    a batch are taken together at its end.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._devices = Devices(scenario, seed)
        self._estimator = Estimator(scenario.deployment.verifier.latency, scenario.estimator, seed)
        self._limits = scenario.limits()
        self._queue = scenario.make_scheduler().queue(self._estimator, self._limits)
        self._execution = _execution(scenario, self._devices)
        self._overhead = ServerOverhead(scenario.network, scenario.verify_cv, seed)
        self._memory = KvMemory(scenario.memory.tokens, scenario.devices, lru=scenario.memory.lru)
        self._admits = scenario.system.drafting == "edge" and scenario.system.prefix_cache and not scenario.memory.lru
        self._blocked: deque[WaitingRound] = deque()
        """Rounds without KV that do not fit beside the sessions in memory; the scheduler does not see them yet."""
        self._waiting: dict[int, WaitingRound] = {}
        self._batch: _Batch | None = None
        self._retry_s = self._idle_since_s = inf
        self._idle_waiting_s = 0.0
        self._refusals = 0
        self._events = 0
        self._batches = 0
        self._recorder = ResultRecorder(self._devices)

    def run(self, until_s: float) -> SimulationResult:
        """Return everything that happens up to `until_s`, or until nothing is left to do.

        Events at the same moment happen in this order: a batch ends and its answers leave, rounds arrive by device
        number, the scheduler decides. So a round that arrives just then can be in the next batch.
        """
        with gc_paused():
            while (now_s := self._next_s()) <= until_s:
                if self._batch is not None:
                    self._complete(self._batch)
                self._arrive(self._devices.arrived(now_s))
                if self._waiting:
                    self._decide(now_s)
            self._arrive(self._devices.arrived(until_s))
            return self._result(until_s)

    def _next_s(self) -> float:
        """Return when the server is free to decide and has something new to decide about."""
        if self._batch is not None:
            return self._batch.ended_s
        next_s = min(float(self._devices.arrives_s.min()), self._retry_s)
        return next_s if next_s >= self._overhead.free_s else self._overhead.free_s

    def _arrive(self, devices: Integers) -> None:
        """Hand rounds that have reached the server to the scheduler, as far as their KV fits."""
        if not len(devices):
            return
        requests = self._devices.take_arrived(devices)
        self._events += len(requests)
        self._estimator.estimate(*requests)
        admitted: list[WaitingRound] = []
        for request in requests:
            if request.cached or not self._admits:
                admitted.append(request)
                continue
            # Sessions that were evicted return before those that have not begun, or they might starve.
            if self._devices.is_first_round(request.client):
                self._blocked.append(request)
            else:
                self._blocked.appendleft(request)
            admitted += self._admit_blocked()
        self._enqueue(admitted)

    def _admit_blocked(self) -> Iterator[WaitingRound]:
        """Admit blocked sessions in their order as long as their KV fits."""
        blocked = self._blocked
        memory = self._memory
        while blocked and memory.admit(blocked[0].client, blocked[0].kv_tokens):
            yield blocked.popleft()

    def _enqueue(self, requests: Sequence[WaitingRound]) -> None:
        self._waiting.update(zip(map(_client, requests), requests, strict=True))
        self._queue.add_all(requests)

    def _decide(self, now_s: float) -> None:
        """Ask the idle server's scheduler for a batch, once the server is through with the last one."""
        if now_s < self._overhead.free_s:
            self._retry_s = self._overhead.free_s
            return
        decision = self._queue.next_batch(now_s)
        if not decision.batch:
            self._refusals += 1
            self._idle_since_s = min(self._idle_since_s, now_s)
            # A time that has passed would let the loop stand still: then only an arrival changes anything.
            self._retry_s = decision.retry_s if decision.retry_s > now_s else inf
            return
        if self._idle_since_s < inf:
            self._idle_waiting_s += now_s - self._idle_since_s
            self._idle_since_s = inf
        self._retry_s = inf
        self._start(decision.batch, decision.chunks, now_s)

    def _start(self, requests: list[WaitingRound], chunks: Mapping[int, int], now_s: float) -> None:
        """Start a batch, and reserve memory for it until its end."""
        for request in requests:
            if self._waiting.pop(request.client, None) is not request:
                raise SkitError("the scheduler put a request into a batch that does not wait: it is broken")
        clients = np.fromiter(map(_client, requests), np.int64, len(requests))
        kv_tokens = self._devices.at_server[clients, 2:]
        if chunks:
            for index, request in enumerate(requests):
                kv_tokens[index, 0] = chunks.get(request.client, request.new)
        new, cached = kv_tokens.sum(axis=0).tolist()
        if len(requests) > self._limits.requests or new + cached > self._limits.kv_tokens:
            raise SkitError("the scheduler chose a batch beyond the server's limits: it is broken")
        seconds, drafted = self._execution.run(requests, chunks)
        seconds = self._overhead.verification_s(seconds, len(requests), now_s)
        # What the server drafts needs KV too, until it is known how much of it is accepted.
        self._reserve(clients, kv_tokens.sum(axis=1).astype(np.int64) + (0 if drafted is None else drafted))
        self._batch = _Batch(requests, clients, now_s, now_s + seconds, drafted, chunks)
        expected_s = now_s + self._estimator.batch_s(requests, chunks)
        left_waiting = len(self._waiting) + len(self._blocked)
        row = (now_s, now_s + seconds, expected_s, len(requests), left_waiting, new, cached)
        self._recorder.batches.append(row)

    def _reserve(self, clients: Integers, tokens: Integers) -> None:
        """Pin the batch's KV; rounds of sessions evicted for it have to be computed from their first token on."""
        for client in self._memory.pin(clients, tokens, self._waiting):
            self._devices.evict(client)
            if (evicted := self._waiting.get(client)) is not None:
                evicted.new = evicted.new + evicted.cached
                evicted.cached = 0
                self._estimator.estimate(evicted)
                self._queue.changed(evicted)

    def _complete(self, batch: _Batch) -> None:
        """End a batch and send its answers."""
        # Rounds that arrived during the batch were there before the memory that it frees, so they are admitted first.
        self._arrive(self._devices.arrived(batch.ended_s, before=True))
        if batch.chunks:
            batch = self._requeue_chunks(batch)
        clients = batch.clients
        at_server = self._devices.at_server[batch.clients]
        if len(clients):
            answered = self._devices.receive_answers(clients, batch.ended_s, batch.drafted)
            self._memory.unpin(clients, self._devices.cached[clients])
            times = (batch.started_s, batch.ended_s, answered.sent_s)
            self._recorder.add_answers(clients, self._batches, times, at_server, answered)
        self._enqueue(list(self._admit_blocked()))
        self._events += 1
        self._batches += 1
        self._batch = None
        self._overhead.verification_ended(batch.ended_s, len(clients))

    def _requeue_chunks(self, batch: _Batch) -> _Batch:
        """Let requests that were computed in part wait for the rest, and return the batch without them."""
        is_complete = np.array([request.client not in batch.chunks for request in batch.requests])
        for request in (request for request in batch.requests if request.client in batch.chunks):
            self._devices.compute_chunk(request, batch.chunks[request.client])
            self._estimator.estimate(request)
            self._enqueue([request])
        clients = batch.clients[~is_complete]
        self._memory.unpin(clients, self._devices.cached[clients])
        return replace(batch, clients=batch.clients[is_complete])

    def _result(self, end_s: float) -> SimulationResult:
        idle_s = end_s - self._idle_since_s if self._idle_since_s < inf else 0.0
        at_server = [*(self._batch.requests if self._batch else ()), *self._waiting.values(), *self._blocked]
        return self._recorder.result(
            end_s,
            [request.client for request in at_server],
            refusals=self._refusals,
            idle_waiting_s=self._idle_waiting_s + idle_s,
            evictions=self._memory.evictions,
            peak_kv_tokens=self._memory.peak,
            events=self._events,
        )


_client = attrgetter("client")


def _execution(scenario: Scenario, devices: Devices) -> BatchExecution:
    deployment = scenario.deployment
    typical = scenario.source.typical
    if scenario.system.drafting != "server":
        return VerificationOnly(deployment, None if scenario.system.drafting == "edge" else 0)
    longest = typical.longest if scenario.longest_draft is None else min(scenario.longest_draft, typical.longest)
    if scenario.batch_method is None:
        return RoundDrafting(deployment, devices.drafts, longest, learned=scenario.learned)
    return PolicyDrafting(deployment, scenario.batch_method, devices.confidences, longest)


TokenConfidences = Callable[[Sequence[int]], Sequence[Sequence[float]]]
"""Returns the draft model's confidences in the tokens of each of several clients' drafts."""


class PolicyDrafting:
    """Drafting for the whole batch as a method's policy decides, at most `longest` tokens, then one verification.

    Prompts are read by both models; a batch with a prompt is not drafted for.
    """

    def __init__(self, deployment: Deployment, method: Method, confidences: TokenConfidences, longest: int) -> None:
        policy = method.policy()
        assert isinstance(policy, Policy)
        self._policy = policy
        self._confidences = confidences
        self._longest = longest
        self._draft_s = deployment.drafter.latency.seconds
        self._verify_s = deployment.verifier.pass_s
        self._decision_s = (deployment.predictor_s or 0.0) if method.learned else 0.0

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of the policy's draft forwards and of verifying the tokens that it chose."""
        rows = rows_of(batch, chunks)
        if chunks or any(not cached for _, cached in rows):
            return self._verify_s(rows) + self._draft_s(rows), 0
        drafter = _ConfidenceDrafter(batch, self._confidences([request.client for request in batch]), self._longest)
        self._policy.draft(cast("Drafter", drafter))
        chosen = [len(nodes) for nodes in self._policy.choose(drafter.drafts)]
        seconds = sum(self._draft_s(forward) + self._decision_s * len(forward) for forward in drafter.forwards)
        verified = [(new + submitted, cached) for (new, cached), submitted in zip(rows, chosen, strict=True)]
        return seconds + self._verify_s(verified), np.array(chosen)


class _ConfidenceDrafter:
    """The drafter that a policy sees: chains whose tokens have nothing but a confidence."""

    def __init__(self, batch: Sequence[WaitingRound], confidences: Sequence[Sequence[float]], longest: int) -> None:
        self.drafts = []
        for round_ in batch:
            # The policy needs a request's name and the length of its context, nothing else.
            request = SimpleNamespace(id=str(round_.client))
            session = SimpleNamespace(request=request, tokens=range(round_.cached + round_.new))
            self.drafts.append(Draft(cast("Session", session), TokenTree(0)))
        self.forwards: list[list[tuple[int, int]]] = []
        """New and cached tokens of each request, forward by forward."""
        self._chains = {id(draft): _Chain(chain) for draft, chain in zip(self.drafts, confidences, strict=True)}
        self._longest = longest

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take."""
        return self._longest - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain; return those that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        if grown:
            self.forwards.append([(1, draft.context_length - 1 + draft.tree.last) for draft in grown])
        for draft in grown:
            position = draft.tree.last
            draft.tree.add(0, position, self._chains[id(draft)], position)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Refuse to draft trees: acceptance rates describe chains."""
        raise SkitError("a simulated server drafts chains from acceptance rates: name the folder of a run instead")


class _Chain:
    sampled = False

    def __init__(self, confidences: Sequence[float]) -> None:
        self._confidences = confidences

    def stats(self, row: int, token: int) -> NodeStats:
        raise SkitError(NEEDS_TRACE)

    def probability(self, row: int, token: int) -> float:
        return self._confidences[row]

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        raise SkitError(NEEDS_TRACE)


NEEDS_TRACE = (
    "a simulated server knows only the probability of a drafted token, and this method reads more: name a trace or "
    "the folder of a run as --acceptance"
)
