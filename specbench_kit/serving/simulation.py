"""The event loop: devices send, the server verifies batches, answers go back."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.serving.counter_rng import Floats, Integers
from specbench_kit.serving.devices import AnsweredRounds, Devices
from specbench_kit.serving.execution import BatchExecution, Drafted, RecordedDrafting, VerificationOnly
from specbench_kit.serving.memory import KvMemory
from specbench_kit.serving.policy_drafting import PolicyDrafting
from specbench_kit.serving.result import BATCH_COLUMNS, RESPONSE_COLUMNS, ROUND_COLUMNS, RowBuffer, SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.base import Decision
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.server_overhead import ServerOverhead


def simulate(scenario: Scenario, seed: int = 0) -> SimulationResult:
    """Everything that happens in a scenario; the same for one seed on every machine."""
    return Simulation(scenario, seed).run(scenario.duration_s)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the server is at; `drafted` is how many tokens it drafted for requests, where it drafts.

    Of clients in `parts` only so many of the tokens are computed.
    """

    requests: list[WaitingRound]
    clients: Integers
    started_s: float
    ended_s: float
    drafted: Drafted
    parts: Mapping[int, int]


class Simulation:
    """One server and its devices; runs on where it has stopped.

    Devices are arrays, and so is what they do. A request becomes an object where it waits: that is what schedulers see.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._devices = scenario, Devices(scenario, seed)
        self._estimator = Estimator(scenario.deployment.verifier.latency, scenario.estimator, seed)
        self._limits = scenario.limits()
        self._queue = scenario.make_scheduler().queue(self._estimator, self._limits)
        self._execution = _execution(scenario, self._devices)
        self._host = ServerOverhead(scenario.network, scenario.verify_cv, seed)
        self._residents = KvMemory(scenario.memory.tokens, scenario.devices, lru=scenario.memory.lru)
        self._admits = scenario.system.drafting == "edge" and scenario.system.prefix_cache and not scenario.memory.lru
        self._held: deque[WaitingRound] = deque()
        """Rounds whose KV does not fit beside that of the sessions in memory, which come and go before them."""
        self._waiting: dict[int, WaitingRound] = {}
        self._batch: _Batch | None = None
        self._asked_again_s = self._idle_since_s = inf
        self._idle_waiting_s, self._refusals, self._events, self._batches = 0.0, 0, 0, 0
        self._rounds, self._responses, self._batch_rows = (
            RowBuffer(ROUND_COLUMNS),
            RowBuffer(RESPONSE_COLUMNS),
            RowBuffer(BATCH_COLUMNS),
        )

    def run(self, until_s: float) -> SimulationResult:
        """Everything that happens by then, or until nothing is left to do."""
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
        """When the server is free to decide, with something new to decide about."""
        if self._batch is not None:
            return self._batch.ended_s
        next_s = min(float(self._devices.arrives_s.min()), self._asked_again_s)
        return next_s if next_s >= self._host.free_s else self._host.free_s

    def _arrive(self, devices: Integers) -> None:
        """Rounds have reached the server."""
        if not len(devices):
            return
        requests = self._devices.waiting(devices)
        self._events += len(requests)
        self._estimator.judge(*requests)
        let_in: list[WaitingRound] = []
        for request in requests:
            if request.cached or not self._admits:
                let_in.append(request)
            else:
                self._hold(request)
                let_in += self._admitted()
        self._enqueue(let_in)

    def _hold(self, request: WaitingRound) -> None:
        """Sessions without KV wait until they are let in: those that were evicted first, the others in their order."""
        if self._devices.has_begun(request.client):
            self._held.appendleft(request)
        else:
            self._held.append(request)

    def _admitted(self) -> Iterator[WaitingRound]:
        """Let sessions in as long as their KV fits."""
        held, residents = self._held, self._residents
        while held and residents.admit(held[0].client, held[0].kv_tokens):
            yield held.popleft()

    def _enqueue(self, requests: Sequence[WaitingRound]) -> None:
        self._waiting.update(zip(map(_client, requests), requests, strict=True))
        self._queue.add_all(requests)

    def _decide(self, now_s: float) -> None:
        """Ask the idle server's scheduler for a batch, once the answers of the last one are out."""
        if now_s < self._host.free_s:
            self._asked_again_s = self._host.free_s
            return
        decision = self._queue.next_batch(now_s)
        if not decision.batch:
            self._refuse(now_s, decision)
            return
        if self._idle_since_s < inf:
            self._idle_waiting_s += now_s - self._idle_since_s
            self._idle_since_s = inf
        self._asked_again_s = inf
        self._start(decision.batch, decision.parts, now_s)

    def _refuse(self, now_s: float, decision: Decision) -> None:
        self._refusals += 1
        self._idle_since_s = min(self._idle_since_s, now_s)
        self._asked_again_s = decision.again_s if decision.again_s > now_s else inf

    def _start(self, requests: list[WaitingRound], parts: Mapping[int, int], now_s: float) -> None:
        for request in requests:
            if self._waiting.pop(request.client, None) is not request:
                raise SkitError("the scheduler put a request into a batch that does not wait: it is broken")
        clients = np.fromiter(map(_client, requests), np.int64, len(requests))
        kv_tokens = self._devices.seen[clients, 2:]
        for place in [place for place, one in enumerate(requests) if one.client in parts] if parts else ():
            kv_tokens[place, 0] = parts[requests[place].client]
        new, cached = kv_tokens.sum(axis=0).tolist()
        if len(requests) > self._limits.requests or new + cached > self._limits.kv_tokens:
            raise SkitError("the scheduler chose a batch beyond the server's limits: it is broken")
        seconds, drafted = self._execution.run(requests, parts)
        seconds = self._host.takes_s(seconds, len(requests), now_s)
        self._reserve(clients, kv_tokens.sum(axis=1).astype(np.int64) + (0 if drafted is None else drafted))
        self._batch = _Batch(requests, clients, now_s, now_s + seconds, drafted, parts)
        expected_s, left = now_s + self._estimator.of_batch(requests, parts), len(self._waiting) + len(self._held)
        self._batch_rows.append((now_s, now_s + seconds, expected_s, len(requests), left, new, cached))

    def _reserve(self, clients: Integers, tokens: Integers) -> None:
        """Pin the batch's KV; sessions that have to make room for it come back cold."""
        for number in self._residents.pin(clients, tokens, self._waiting):
            self._devices.evict(number)
            if (evicted := self._waiting.get(number)) is not None:
                evicted.new, evicted.cached = evicted.new + evicted.cached, 0
                self._estimator.judge(evicted)
                self._queue.changed(evicted)

    def _complete(self, batch: _Batch) -> None:
        """Hand the answers out."""
        self._arrive(self._devices.arrived(batch.ended_s, before=True))
        if batch.parts:
            batch = self._go_on(batch)
        clients, seen = batch.clients, self._devices.seen[batch.clients]
        if len(clients):
            found = self._devices.receive(clients, batch.ended_s, batch.drafted)
            self._residents.unpin(clients, self._devices.cached[clients])
            self._record(batch, seen, found)
        self._enqueue(list(self._admitted()))
        self._events += 1
        self._batches += 1
        self._batch = None
        self._host.ended(batch.ended_s, len(clients))

    def _go_on(self, batch: _Batch) -> _Batch:
        """Requests that were computed in part wait for the rest; what is left of the batch."""
        whole = np.array([one.client not in batch.parts for one in batch.requests])
        for request in (one for one in batch.requests if one.client in batch.parts):
            self._devices.compute(request, batch.parts[request.client])
            self._estimator.judge(request)
            self._enqueue([request])
        clients = batch.clients[~whole]
        self._residents.unpin(clients, self._devices.cached[clients])
        return replace(batch, clients=batch.clients[whole])

    def _record(self, batch: _Batch, seen: Floats, found: AnsweredRounds) -> None:
        """Keep the batch's rounds, and the responses that they ended."""
        clients, slo, planned = batch.clients, self._devices.slo[batch.clients], found.planned
        times = (batch.started_s, batch.ended_s, found.answered_s, found.sent_s)
        self._rounds.extend(len(clients), (clients, slo, self._batches, *times), seen, planned.recorded)
        (ends,) = planned["ends"].nonzero()
        if len(ends):
            tokens = planned["tokens"]
            response = (clients, slo, found.start_s, found.first_s, found.answered_s, planned["prompt"], tokens, tokens)
            self._responses.extend(len(ends), [column[ends] for column in response])

    def _result(self, end_s: float) -> SimulationResult:
        """With what the end cuts short; all of it goes on where the simulation does."""
        idle_s = end_s - self._idle_since_s if self._idle_since_s < inf else 0.0
        cut = [*(self._batch.requests if self._batch else ()), *self._waiting.values(), *self._held]
        return SimulationResult(
            self._rounds.table(self._cut_short(cut)),
            self._responses.table(self._devices.going_on(end_s)),
            self._batch_rows.table(),
            end_s,
            self._refusals,
            self._idle_waiting_s + idle_s,
            self._residents.evictions,
            self._residents.peak,
            self._events,
        )

    def _cut_short(self, requests: Sequence[WaitingRound]) -> dict[str, Any]:
        """Rounds at the server whose answers are not there."""
        clients = np.array([one.client for one in requests], dtype=np.int64)
        nothing = np.zeros(len(requests))
        never = dict.fromkeys(("started_s", "ended_s", "answered_s"), nothing + inf)
        outcome = dict.fromkeys(("submitted", "accepted", "committed"), nothing)
        sent = self._devices.unfinished(clients)
        return sent | never | outcome | {"client": clients, "slo": self._devices.slo[clients], "batch": nothing - 1}


_client = attrgetter("client")


def _execution(scenario: Scenario, devices: Devices) -> BatchExecution:
    deployment, typical = scenario.deployment, scenario.source.typical
    if scenario.system.drafting != "server":
        return VerificationOnly(deployment, None if scenario.system.drafting == "edge" else 0)
    longest = typical.longest if scenario.longest_draft is None else min(scenario.longest_draft, typical.longest)
    if scenario.drafts_by is None:
        return RecordedDrafting(deployment, devices.drafts, longest, learned=scenario.learned)
    return PolicyDrafting(deployment, scenario.drafts_by, devices.sureties, longest)
