"""The event loop: devices send, the server verifies batches, answers go back."""

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from math import inf

from specbench_kit.errors import SkitError
from specbench_kit.serving.device import Device
from specbench_kit.serving.memory import Residents
from specbench_kit.serving.result import BATCHES, RESPONSES, ROUNDS, Columns, Result
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.base import Decision
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import Waiting
from specbench_kit.serving.timing import CoLocated, DraftTime, Execution, Verification


def simulate(scenario: Scenario, seed: int = 0) -> Result:
    """Everything that happens in a scenario; the same for one seed on every machine."""
    with _uncollected():
        return _Simulation(scenario, seed).run()


class _Simulation:
    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        time = DraftTime(scenario.deployment, scenario.learned)
        self._devices = [Device(number, scenario, time, seed) for number in range(scenario.devices)]
        self._estimator = Estimator(scenario.deployment.verifier.latency, scenario.estimator, seed)
        self._limits = scenario.limits()
        self._queue = scenario.make_scheduler().queue(self._estimator, self._limits)
        self._execution = _execution(scenario)
        self._residents = Residents(scenario.memory.tokens)
        self._admits = scenario.system.drafting == "edge" and scenario.system.prefix_cache
        self._held: deque[Waiting] = deque()
        """Rounds whose KV does not fit beside that of the sessions in memory, which come and go before them."""
        self._coming: list[tuple[float, int]] = []
        """When rounds reach the server, and of which device."""
        self._waiting: dict[int, Waiting] = {}
        self._batch: list[Waiting] = []
        self._drafted: int | None = None
        self._started_s = self._ended_s = inf
        self._asked_again_s = inf
        self._idle_since_s = inf
        self._idle_waiting_s, self._refusals, self._events, self._batches = 0.0, 0, 0, 0
        self._responses_begun = [0] * scenario.devices
        self._rounds, self._responses, self._batch_rows = Columns(ROUNDS), Columns(RESPONSES), Columns(BATCHES)

    def run(self) -> Result:
        """Until the time is up, or nothing is left to do."""
        for device in self._devices:
            self._expect(device, device.begin(0.0))
        while (now_s := self._next_s()) <= self._scenario.duration_s:
            if now_s == self._ended_s:
                self._complete(now_s)
            self._arrive(now_s)
            if not self._batch and self._waiting:
                self._decide(now_s)
        return self._result()

    def _next_s(self) -> float:
        coming_s = self._coming[0][0] if self._coming else inf
        return min(coming_s, self._ended_s, self._asked_again_s)

    def _expect(self, device: Device, at_s: float) -> None:
        if at_s < inf:
            heappush(self._coming, (at_s, device.number))

    def _arrive(self, now_s: float) -> None:
        """Take in every round that has reached the server."""
        coming, devices, judge = self._coming, self._devices, self._estimator.judge
        while coming and coming[0][0] <= now_s:
            arrived_s, number = heappop(coming)
            request = devices[number].waiting(arrived_s)
            judge(request)
            self._events += 1
            if request.cached or not self._admits:
                self._residents.arrive(number)
                self._enqueue(request)
            elif request.new > devices[number].prompt + devices[number].round.submitted:
                self._held.appendleft(request)
            else:
                self._held.append(request)
        if self._held:
            self._admit()

    def _admit(self) -> None:
        """Let sessions in as long as their KV fits: those that were evicted first, the others in their order."""
        held, residents = self._held, self._residents
        while held and residents.admit(held[0].client, held[0].kv_tokens):
            self._enqueue(held.popleft())

    def _enqueue(self, request: Waiting) -> None:
        self._waiting[request.client] = request
        self._queue.add(request)

    def _decide(self, now_s: float) -> None:
        """Ask the idle server's scheduler for a batch."""
        decision = self._queue.next_batch(now_s)
        if not decision.batch:
            self._refuse(now_s, decision)
            return
        if self._idle_since_s < inf:
            self._idle_waiting_s += now_s - self._idle_since_s
            self._idle_since_s = inf
        self._asked_again_s = inf
        self._start(decision.batch, now_s)

    def _refuse(self, now_s: float, decision: Decision) -> None:
        self._refusals += 1
        self._idle_since_s = min(self._idle_since_s, now_s)
        self._asked_again_s = decision.again_s if decision.again_s > now_s else inf

    def _start(self, batch: list[Waiting], now_s: float) -> None:
        for request in batch:
            if self._waiting.pop(request.client, None) is not request:
                raise SkitError("the scheduler put a request into a batch that does not wait: it is broken")
        new, cached = sum(request.new for request in batch), sum(request.cached for request in batch)
        if len(batch) > self._limits.requests or new + cached > self._limits.kv_tokens:
            raise SkitError("the scheduler chose a batch beyond the server's limits: it is broken")
        seconds, self._drafted = self._execution.run(batch)
        self._reserve(batch)
        self._batch, self._started_s, self._ended_s = batch, now_s, now_s + seconds
        expected_s = self._estimator.of_batch(batch)
        self._batch_rows.append(
            (now_s, self._ended_s, now_s + expected_s, len(batch), len(self._waiting) + len(self._held), new, cached)
        )

    def _reserve(self, batch: list[Waiting]) -> None:
        """Pin the batch's KV; sessions that have to make room for it come back cold."""
        residents, drafted = self._residents, self._drafted or 0
        for request in batch:
            residents.pin(request.client, request.kv_tokens + drafted)
        for number in residents.make_room():
            self._devices[number].cached = 0
            if (evicted := self._waiting.get(number)) is not None:
                evicted.new, evicted.cached = evicted.new + evicted.cached, 0
                self._estimator.judge(evicted)
                self._queue.changed(evicted)

    def _complete(self, now_s: float) -> None:
        """Hand the answers out."""
        drafted = self._drafted or 0
        keeps = self._scenario.system.prefix_cache
        for request in self._batch:
            device = self._devices[request.client]
            accepted, committed = device.receive(now_s, self._drafted)
            self._record(request, device, accepted, committed)
            kept = device.cached = device.context - 1 if keeps and device.remaining else 0
            self._residents.unpin(request.client, request.kv_tokens + drafted, kept)
            if not device.remaining:
                self._finish(device)
            self._expect(device, device.go_on())
        self._admit()
        self._events += 1
        self._batches += 1
        self._batch, self._ended_s = [], inf

    def _record(self, request: Waiting, device: Device, accepted: int, committed: int) -> None:
        round_, drafted = device.round, self._drafted
        submitted = round_.submitted if drafted is None else min(round_.submitted, drafted)
        self._rounds.append(
            (
                request.client, device.slo, self._responses_begun[request.client], self._batches, device.sent_s,
                request.arrived_s, self._started_s, self._ended_s, device.answered_s, request.deadline_s,
                device.draft_s, request.new, request.cached, round_.steps, submitted, accepted, committed,
            )
        )  # fmt: skip

    def _finish(self, device: Device) -> None:
        self._responses_begun[device.number] += 1
        self._responses.append(self._response(device, device.answered_s))

    def _response(self, device: Device, end_s: float) -> tuple[float, ...]:
        committed = device.context - device.prompt
        tokens = committed + device.remaining
        return device.number, device.slo, device.start_s, device.first_s, end_s, device.prompt, tokens, committed

    def _result(self) -> Result:
        """With what the end of the simulation cut short."""
        end_s = self._scenario.duration_s
        if self._idle_since_s < inf:
            self._idle_waiting_s += end_s - self._idle_since_s
        for request in (*self._batch, *self._waiting.values(), *self._held):
            self._cut_short(request, self._devices[request.client])
        for device in self._devices:
            going_on = device.remaining and device.start_s <= end_s
            while going_on:
                self._responses.append(self._response(device, inf))
                going_on = device.begin_in_vain(end_s)
        return Result(
            self._rounds.table(),
            self._responses.table(),
            self._batch_rows.table(),
            end_s,
            self._refusals,
            self._idle_waiting_s,
            self._residents.evictions,
            self._residents.peak,
            self._events,
        )

    def _cut_short(self, request: Waiting, device: Device) -> None:
        self._rounds.append(
            (
                request.client, device.slo, self._responses_begun[request.client], -1, device.sent_s,
                request.arrived_s, inf, inf, inf, request.deadline_s,
                device.draft_s, request.new, request.cached, device.round.steps, 0, 0, 0,
            )
        )  # fmt: skip


@contextmanager
def _uncollected() -> Iterator[None]:
    """Events leave no cycles behind, and looking for some takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _execution(scenario: Scenario) -> Execution:
    deployment, typical = scenario.deployment, scenario.source.typical
    if scenario.system.drafting != "server":
        return Verification(deployment, None if scenario.system.drafting == "edge" else 0)
    slowest_s = 1 / max(scenario.slo.speeds)
    return CoLocated(deployment, typical.chance, typical.longest, slowest_s)
