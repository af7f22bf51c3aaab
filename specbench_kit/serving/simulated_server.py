"""One simulated verification server: its scheduler's queue, its KV memory, and the batch that it
processes.
"""

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


class ServerStages:
    """The stages of a pipeline, through which batches pass one behind the other; a server without
    one has one stage.

    Every stage takes an equal share of a pass without its transfers, and none waits for room in the
    next one: a batch that finds it busy waits in front of it. So batches of unequal size hold each
    other up, and none overtakes.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free_s = [0.0] * count

    @property
    def free_s(self) -> float:
        """From when on the next batch may enter."""
        return self._free_s[0]

    def enter(self, now_s: float, pass_s: float, transfers_s: float) -> float:
        """Return when a batch that enters now leaves the last stage, if a pass through idle stages
        takes `pass_s`.

        `transfers_s` of that are the transfers between all stages.
        """
        if self.count == 1:
            self._free_s[0] = now_s + pass_s
            return self._free_s[0]
        stage_s = (pass_s - transfers_s) / self.count
        transfer_s = transfers_s / (self.count - 1)
        left_s = now_s - transfer_s
        for stage, free_s in enumerate(self._free_s):
            left_s = max(left_s + transfer_s, free_s) + stage_s
            self._free_s[stage] = left_s
        return left_s

    def restart(self, now_s: float) -> None:
        """Empty all stages."""
        self._free_s = [now_s] * self.count


class SimulatedServer:
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
        self.in_flight: deque[Batch] = deque()
        """The batches under way in the order in which they began, at most one for each stage of a
        pipeline.
        """
        self.sessions: set[int] = set()
        self.waiting: dict[int, WaitingRound] = {}
        self.blocked: deque[WaitingRound] = deque()
        """Rounds without KV that do not fit beside the sessions in memory; the scheduler does not
        see them yet.
        """
        self.capacity = server.memory
        self.memory = KvMemory(server.memory.tokens, scenario.devices, lru=server.memory.lru)
        self.overhead = ServerOverhead(scenario.network, scenario.verify_cv, own_seed)
        self.retry_s = self.idle_since_s = inf
        self.idle_waiting_s = 0.0
        self.refusals = 0
        self.scheduler = scenario.make_scheduler()
        self._queue = self.scheduler.queue(self.estimator, self.limits)
        self._devices = devices
        self.execution = execution
        self._recorder = recorder
        self._stages = ServerStages(scenario.depth(server))
        self.admits = (
            scenario.system.drafting == "edge"
            and scenario.system.prefix_cache
            and not server.memory.lru
        )

    def receive(self, requests: Sequence[WaitingRound]) -> None:
        """Hand rounds that have reached the server to the scheduler, as far as their KV fits."""
        self.estimator.estimate(*requests)
        admitted: list[WaitingRound] = []
        for request in requests:
            if request.cached or not self.admits:
                admitted.append(request)
                continue
            # Sessions that were evicted return before those that have not begun, or they might
            # starve.
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

    @property
    def batch(self) -> Batch | None:
        """The batch that ends next."""
        return self.in_flight[0] if self.in_flight else None

    @property
    def stages(self) -> int:
        """How many batches may be under way."""
        return self._stages.count

    @property
    def has_room(self) -> bool:
        """True if one more batch may be under way."""
        return len(self.in_flight) < self._stages.count

    def transfers_s(self, new: int, seconds: float, isolated_s: float) -> float:
        """Return the seconds of all transfers between stages in a pass of `seconds` that takes
        `isolated_s` alone.
        """
        return (
            self.deployment.verifier.transfers_s(new) * seconds / isolated_s if isolated_s else 0.0
        )

    def decide(self, now_s: float) -> None:
        """Ask the scheduler for a batch, once the first stage and the processor are through with
        the last one.
        """
        free_s = max(self.overhead.free_s, self._stages.free_s)
        if now_s < free_s:
            self.retry_s = free_s
            return
        decision = self._queue.next_batch(now_s)
        if not decision.batch:
            self.refusals += 1
            self.idle_since_s = min(self.idle_since_s, now_s)
            # A time that has passed would let the loop stand still: then only an arrival changes
            # anything.
            self.retry_s = decision.retry_s if decision.retry_s > now_s else inf
            return
        if self.idle_since_s < inf:
            self.idle_waiting_s += now_s - self.idle_since_s
            self.idle_since_s = inf
        self._start(decision.batch, decision.chunks, now_s)
        self.retry_s = self._stages.free_s if self.waiting and self.has_room else inf

    def _start(self, requests: list[WaitingRound], chunks: Mapping[int, int], now_s: float) -> None:
        """Start a batch, and reserve memory for it until its end."""
        for request in requests:
            if self.waiting.pop(request.client, None) is not request:
                raise SkitError(
                    "the scheduler put a request into a batch that does not wait: it is broken"
                )
        clients = np.fromiter(map(_client, requests), np.int64, len(requests))
        self.estimator.estimate(
            *self._devices.add_drafts(requests, chunks, now_s, self.limits.kv_tokens)
        )
        kv_tokens = self._devices.at_server[clients, 2:]
        if chunks:
            for index, request in enumerate(requests):
                kv_tokens[index, 0] = chunks.get(request.client, request.new)
        new, cached = kv_tokens.sum(axis=0).tolist()
        if len(requests) > self.limits.requests or new + cached > self.limits.kv_tokens:
            raise SkitError("the scheduler chose a batch beyond the server's limits: it is broken")
        isolated_s, drafted = self.execution.run(requests, chunks)
        seconds = self.overhead.verification_s(isolated_s, len(requests), now_s)
        # What the server drafts needs KV too, until it is known how much of it is accepted.
        self._reserve(
            clients, kv_tokens.sum(axis=1).astype(np.int64) + (0 if drafted is None else drafted)
        )
        expected_s = now_s + self.estimator.batch_s(requests, chunks)
        left_waiting = len(self.waiting) + len(self.blocked)
        transfers_s = self.transfers_s(int(new), seconds, isolated_s)
        ended_s = self._stages.enter(now_s, seconds, transfers_s)
        row = (now_s, ended_s, expected_s, len(requests), left_waiting, new, cached)
        number = self._recorder.add_batch(self.index, row)
        self.in_flight.append(
            Batch(requests, clients, now_s, ended_s, drafted, chunks, number, expected_s)
        )

    def _reserve(self, clients: Integers, tokens: Integers) -> None:
        """Pin the batch's KV; rounds of sessions evicted for it have to be computed from their
        first token on.
        """
        in_flight = [batch.clients for batch in self.in_flight]
        for client in self.memory.pin(clients, tokens, self.waiting, in_flight):
            self._devices.evict(client)
            if (evicted := self.waiting.get(client)) is not None:
                evicted.lose_kv()
                self.estimator.estimate(evicted)
                self._queue.changed(evicted)

    def complete(self, batch: Batch) -> tuple[Integers, AnsweredRounds] | None:
        """End a batch and send its answers; return the clients that were answered, with their
        rounds.
        """
        self.in_flight.popleft()
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
        self.overhead.verification_ended(batch.ended_s, len(clients))
        return None if answered is None else (clients, answered)

    def _requeue_chunks(self, batch: Batch) -> Batch:
        """Let requests that were computed in part wait for the rest, and return the batch without
        them.
        """
        is_complete = np.array([request.client not in batch.chunks for request in batch.requests])
        for request in (request for request in batch.requests if request.client in batch.chunks):
            self._devices.compute_chunk(request, batch.chunks[request.client])
            self.estimator.estimate(request)
            self._enqueue([request])
        clients = batch.clients[~is_complete]
        self.memory.unpin(clients, self._devices.cached[clients])
        drafted = batch.drafted
        if isinstance(drafted, np.ndarray):
            drafted = drafted[is_complete]
        return replace(batch, clients=batch.clients[is_complete], drafted=drafted)

    def release(self, client: int) -> None:
        """Forget a session that goes on elsewhere; its KV makes room for others."""
        self.sessions.discard(client)
        self.memory.release(client)
        self._enqueue(list(self._admit_blocked()))

    def fail(self, now_s: float) -> list[WaitingRound]:
        """Lose all batches under way, waiting rounds and KV; return the rounds in the order of
        their arrival.

        What a batch has computed is lost with it: its rounds have to be verified again.
        """
        lost = self.unanswered
        for batch in self.in_flight:
            self._recorder.cut_batch(batch.number, now_s)
        self.in_flight.clear()
        self._stages.restart(now_s)
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
        """When a batch ends, or when the scheduler wants to be asked again."""
        return min(self.in_flight[0].ended_s, self.retry_s) if self.in_flight else self.retry_s

    @property
    def unanswered(self) -> list[WaitingRound]:
        """The rounds at the server: in its batches, waiting, or blocked."""
        verified = (request for batch in self.in_flight for request in batch.requests)
        return [*verified, *self.waiting.values(), *self.blocked]

    def work_s(self, request: WaitingRound, now_s: float) -> float:
        """Return the expected seconds of the batch under way, and of one round of every other
        session than this one.

        A pipeline of stages has so many batches under way that each of them counts with its share
        of a pass. Sessions count whether their rounds wait here or are still being drafted, since a
        device that drafts at the moment comes back. Where a response is a single round, that is the
        work that waits.
        """
        absent = {request.client}
        absent.update(other.client for batch in self.in_flight for other in batch.requests)
        # In the order of clients, so that the sum is the same to the last digit in every run.
        others = sorted(self.sessions - absent)
        shapes = self._devices.at_server[others, 2:].astype(np.int64).tolist()
        batches = ceil(len(others) / self.limits.requests)
        idle_s = self.estimator.idle_s
        each_s = sum(self.estimator.isolated_s(new, cached) - idle_s for new, cached in shapes)
        return self._batch_left_s(now_s) + (batches * idle_s + each_s) / self._stages.count

    def round_s(self, request: WaitingRound) -> float:
        """Return the expected seconds of verifying a round here by itself, with its KV if this
        server has it.
        """
        if request.client in self.sessions:
            return self.estimator.isolated_s(request.new, request.cached)
        return self.estimator.isolated_s(request.new + request.cached, 0)

    def _batch_left_s(self, now_s: float) -> float:
        """Return the expected seconds until the next batch may begin; 0 if the server is idle."""
        if not self.in_flight:
            return max(0.0, self.overhead.free_s - now_s)
        last = self.in_flight[-1]
        if self._stages.count == 1:
            return max(0.0, last.expected_s - now_s)
        return max(
            0.0, last.started_s + (last.expected_s - last.started_s) / self._stages.count - now_s
        )


_client = attrgetter("client")
