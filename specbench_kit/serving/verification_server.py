"""One simulated verification server: its scheduler's queue, its KV memory, and the batch that it processes."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from operator import attrgetter

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.arrays import Integers
from specbench_kit.serving.devices import AnsweredRounds, Devices
from specbench_kit.serving.execution import BatchExecution, Drafted
from specbench_kit.serving.memory import KvMemory
from specbench_kit.serving.network import ServerOverhead
from specbench_kit.serving.pool_spec import PoolServer
from specbench_kit.serving.result import ResultRecorder
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that a server processes; of clients in `chunks` only so many tokens are computed.

    `number` is its row in the table of batches, `expected_s` the end that the scheduler expects.
    """

    requests: list[WaitingRound]
    clients: Integers
    started_s: float
    ended_s: float
    drafted: Drafted
    chunks: Mapping[int, int]
    number: int
    expected_s: float


class VerificationServer:
    """A server that verifies the rounds which it is given, in the batches that its scheduler forms.

    `index` is its place in the pool, `sessions` are the clients whose responses it was given and has not finished; the
    pool keeps them.
    """

    def __init__(
        self,
        scenario: Scenario,
        server: PoolServer,
        index: int,
        devices: Devices,
        execution: BatchExecution,
        recorder: ResultRecorder,
        seed: int,
    ) -> None:
        # The first server has the random numbers that a single one has.
        own_seed = f"{seed}/server {index}" if index else seed
        self.index = index
        self.deployment = server.deployment
        self.estimator = Estimator(server.deployment.verifier.latency, scenario.estimator, own_seed)
        self.limits = scenario.limits(server)
        self.batch: Batch | None = None
        self.sessions: set[int] = set()
        self.waiting: dict[int, WaitingRound] = {}
        self.blocked: deque[WaitingRound] = deque()
        """Rounds without KV that do not fit beside the sessions in memory; the scheduler does not see them yet."""
        self.memory = KvMemory(server.memory.tokens, scenario.devices, lru=server.memory.lru)
        self.overhead = ServerOverhead(scenario.network, scenario.verify_cv, own_seed)
        self.retry_s = self.idle_since_s = inf
        self.idle_waiting_s = 0.0
        self.refusals = 0
        self.scheduler = scenario.make_scheduler()
        self._queue = self.scheduler.queue(self.estimator, self.limits)
        self._devices = devices
        self._execution = execution
        self._recorder = recorder
        self.admits = scenario.system.drafting == "edge" and scenario.system.prefix_cache and not server.memory.lru

    def receive(self, requests: Sequence[WaitingRound]) -> None:
        """Hand rounds that have reached the server to the scheduler, as far as their KV fits."""
        self.estimator.estimate(*requests)
        admitted: list[WaitingRound] = []
        for request in requests:
            if request.cached or not self.admits:
                admitted.append(request)
                continue
            # Sessions that were evicted return before those that have not begun, or they might starve.
            if self._devices.is_first_round(request.client):
                self.blocked.append(request)
            else:
                self.blocked.appendleft(request)
            admitted += self._admit_blocked()
        self._enqueue(admitted)

    def _admit_blocked(self) -> Iterator[WaitingRound]:
        """Admit blocked sessions in their order as long as their KV fits."""
        blocked = self.blocked
        memory = self.memory
        while blocked and memory.admit(blocked[0].client, blocked[0].kv_tokens):
            yield blocked.popleft()

    def _enqueue(self, requests: Sequence[WaitingRound]) -> None:
        self.waiting.update(zip(map(_client, requests), requests, strict=True))
        self._queue.add_all(requests)

    def decide(self, now_s: float) -> None:
        """Ask the idle server's scheduler for a batch, once the server is through with the last one."""
        if now_s < self.overhead.free_s:
            self.retry_s = self.overhead.free_s
            return
        decision = self._queue.next_batch(now_s)
        if not decision.batch:
            self.refusals += 1
            self.idle_since_s = min(self.idle_since_s, now_s)
            # A time that has passed would let the loop stand still: then only an arrival changes anything.
            self.retry_s = decision.retry_s if decision.retry_s > now_s else inf
            return
        if self.idle_since_s < inf:
            self.idle_waiting_s += now_s - self.idle_since_s
            self.idle_since_s = inf
        self.retry_s = inf
        self._start(decision.batch, decision.chunks, now_s)

    def _start(self, requests: list[WaitingRound], chunks: Mapping[int, int], now_s: float) -> None:
        """Start a batch, and reserve memory for it until its end."""
        for request in requests:
            if self.waiting.pop(request.client, None) is not request:
                raise SkitError("the scheduler put a request into a batch that does not wait: it is broken")
        clients = np.fromiter(map(_client, requests), np.int64, len(requests))
        kv_tokens = self._devices.at_server[clients, 2:]
        if chunks:
            for index, request in enumerate(requests):
                kv_tokens[index, 0] = chunks.get(request.client, request.new)
        new, cached = kv_tokens.sum(axis=0).tolist()
        if len(requests) > self.limits.requests or new + cached > self.limits.kv_tokens:
            raise SkitError("the scheduler chose a batch beyond the server's limits: it is broken")
        seconds, drafted = self._execution.run(requests, chunks)
        seconds = self.overhead.verification_s(seconds, len(requests), now_s)
        # What the server drafts needs KV too, until it is known how much of it is accepted.
        self._reserve(clients, kv_tokens.sum(axis=1).astype(np.int64) + (0 if drafted is None else drafted))
        expected_s = now_s + self.estimator.batch_s(requests, chunks)
        left_waiting = len(self.waiting) + len(self.blocked)
        row = (now_s, now_s + seconds, expected_s, len(requests), left_waiting, new, cached)
        number = self._recorder.add_batch(self.index, row)
        self.batch = Batch(requests, clients, now_s, now_s + seconds, drafted, chunks, number, expected_s)

    def _reserve(self, clients: Integers, tokens: Integers) -> None:
        """Pin the batch's KV; rounds of sessions evicted for it have to be computed from their first token on."""
        for client in self.memory.pin(clients, tokens, self.waiting):
            self._devices.evict(client)
            if (evicted := self.waiting.get(client)) is not None:
                evicted.lose_kv()
                self.estimator.estimate(evicted)
                self._queue.changed(evicted)

    def complete(self, batch: Batch) -> tuple[Integers, AnsweredRounds] | None:
        """End a batch and send its answers; return the clients that were answered, with their rounds."""
        if batch.chunks:
            batch = self._requeue_chunks(batch)
        clients = batch.clients
        at_server = self._devices.at_server[batch.clients]
        answered = None
        if len(clients):
            answered = self._devices.receive_answers(clients, batch.ended_s, batch.drafted)
            self.memory.unpin(clients, self._devices.cached[clients])
            times = (batch.started_s, batch.ended_s, answered.sent_s)
            self._recorder.add_answers(clients, batch.number, times, at_server, answered)
        self._enqueue(list(self._admit_blocked()))
        self.batch = None
        self.overhead.verification_ended(batch.ended_s, len(clients))
        return None if answered is None else (clients, answered)

    def _requeue_chunks(self, batch: Batch) -> Batch:
        """Let requests that were computed in part wait for the rest, and return the batch without them."""
        is_complete = np.array([request.client not in batch.chunks for request in batch.requests])
        for request in (request for request in batch.requests if request.client in batch.chunks):
            self._devices.compute_chunk(request, batch.chunks[request.client])
            self.estimator.estimate(request)
            self._enqueue([request])
        clients = batch.clients[~is_complete]
        self.memory.unpin(clients, self._devices.cached[clients])
        return replace(batch, clients=batch.clients[is_complete])

    def release(self, client: int) -> None:
        """Forget a session that goes on elsewhere; its KV makes room for others."""
        self.sessions.discard(client)
        self.memory.release(client)
        self._enqueue(list(self._admit_blocked()))

    def fail(self, now_s: float) -> list[WaitingRound]:
        """Lose the batch under way, all waiting rounds and all KV; return the rounds in the order of their arrival.

        What the batch has computed is lost with it: its rounds have to be verified again.
        """
        lost = self.unanswered
        if self.batch is not None:
            self._recorder.cut_batch(self.batch.number, now_s)
        self.batch = None
        self.waiting.clear()
        self.blocked.clear()
        self.sessions.clear()
        self.memory.clear()
        self.overhead.restart(now_s)
        self._queue = self.scheduler.queue(self.estimator, self.limits)
        if self.idle_since_s < inf:
            self.idle_waiting_s += now_s - self.idle_since_s
        self.retry_s = self.idle_since_s = inf
        return sorted(lost, key=lambda request: (request.arrived_s, request.client))

    @property
    def next_s(self) -> float:
        """When the server's batch ends or, if it is idle, when its scheduler wants to be asked again."""
        return self.batch.ended_s if self.batch is not None else self.retry_s

    @property
    def unanswered(self) -> list[WaitingRound]:
        """The rounds at the server: in its batch, waiting, or blocked."""
        return [*(self.batch.requests if self.batch else ()), *self.waiting.values(), *self.blocked]

    def work_s(self, request: WaitingRound, now_s: float) -> float:
        """Return the expected seconds of the batch under way, and of one round of every other session than this one.

        Sessions count whether their rounds wait here or are still being drafted, since a device that drafts at the
        moment comes back. Where a response is a single round, that is the work that waits.
        """
        absent = {request.client}
        if self.batch is not None:
            absent.update(other.client for other in self.batch.requests)
        others = [client for client in self.sessions if client not in absent]
        shapes = self._devices.at_server[others, 2:].astype(np.int64).tolist()
        batches = ceil(len(others) / self.limits.requests)
        idle_s = self.estimator.idle_s
        each_s = sum(self.estimator.isolated_s(new, cached) - idle_s for new, cached in shapes)
        return self._batch_left_s(now_s) + batches * idle_s + each_s

    def round_s(self, request: WaitingRound) -> float:
        """Return the expected seconds of verifying a round here by itself, with its KV if this server has it."""
        if request.client in self.sessions:
            return self.estimator.isolated_s(request.new, request.cached)
        return self.estimator.isolated_s(request.new + request.cached, 0)

    def _batch_left_s(self, now_s: float) -> float:
        """Return the expected seconds until the batch under way ends and the next one may begin; 0 if it is idle."""
        if self.batch is not None:
            return max(0.0, self.batch.expected_s - now_s)
        return max(0.0, self.overhead.free_s - now_s)


_client = attrgetter("client")
