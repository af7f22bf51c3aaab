"""The simulator's devices in real time: what they send is verified by a server, and nothing else is modelled there."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.connection import Connection
from specbench_kit.live.wire import RETRYABLE, Status, Up
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.counter_rng import CounterRng, Purpose
from specbench_kit.serving.devices import AnsweredRounds, Devices
from specbench_kit.serving.recorder import ResultRecorder
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.traces.trace import RequestTrace

LATE_S = 0.05
"""By which a draft may leave later than planned before the load counts as more than its machine can make."""


@dataclass(slots=True)
class _Sent:
    """A round at the server."""

    waiting: WaitingRound
    frame: Any
    accepted: int
    sent_s: float


@dataclass(slots=True)
class _Session:
    """A device's response at the server, its text and its rounds so far."""

    name: str
    text: RequestTrace
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class DrivenLoad:
    """What happened, and how late drafts left, in seconds: the median and the 99th percentile."""

    result: SimulationResult
    late_s: tuple[float, float]


@dataclass
class LoadDriver:
    """One scenario against a server. `texts` are the requests whose rounds the scenario's source has, in its order.

    Drafting and the link take the time that the scenario's deployment says, on every device alone.
    """

    scenario: Scenario
    seed: int
    connection: Connection
    texts: Sequence[RequestTrace]
    _sessions: dict[int, _Session] = field(default_factory=dict)
    """By device."""
    _sent: dict[str, tuple[int, _Sent]] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    """By the server's number of a batch its place here."""
    _batches: list[list[float]] = field(default_factory=list)
    _late_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self._devices = Devices(scenario, self.seed)
        self._random = CounterRng(f"{self.seed}/{scenario.deployment.link.seed}", scenario.devices)
        self._nonce = token_hex(8)
        self._recorder = ResultRecorder(self._devices)
        self._began_s = 0.0

    def run(self) -> DrivenLoad:
        """Until the scenario's end."""
        self._began_s, end_s = monotonic_s(), self.scenario.duration_s
        while (now_s := self._now_s()) < end_s:
            due = self._devices.arrived(now_s)
            if len(due):
                self._send(due, now_s)
            wait_s = min(end_s, float(self._devices.arrives_s.min())) - self._now_s()
            found = self.connection.poll(max(0.0, wait_s))
            if found is not None:
                self._take_in([found, *iter(self._here, None)])
        return DrivenLoad(self._result(end_s), tuple(np.quantile(self._late_s or [0.0], [0.5, 0.99]).tolist()))

    def _now_s(self) -> float:
        return monotonic_s() - self._began_s

    def _send(self, due: Integers, now_s: float) -> None:
        """Rounds leave at the moment at which they reach the server."""
        planned = self._devices.unanswered_rounds(due)
        requests = self._devices.take_arrived(due)
        for place, request in enumerate(requests):
            told = {name: int(planned[name][place]) for name in ("response", "submitted", "accepted")}
            self._send_one(request, **told)
            self._late_s.append(now_s - request.arrived_s)

    def _send_one(self, request: WaitingRound, response: int, submitted: int, accepted: int) -> None:
        session = self._session(request.client, response)
        session.rounds += 1
        text, context = session.text, request.new + request.cached - submitted
        offset = context - len(text.prompt_ids)
        draft = {
            "session": session.name,
            "round": session.rounds,
            "base": context,
            "tokens": text.drafted[offset, :submitted].tolist(),
            "round_ms": max(0.001, 1e3 * (request.deadline_s - request.arrived_s)),
            "remaining_ms": max(0.001, 1e3 * (request.response_deadline_s - request.arrived_s)),
        }
        sent = _Sent(request, Up(draft=draft), accepted, self._now_s())
        self._sent[session.name] = request.client, sent
        self.connection.send(sent.frame)

    def _session(self, device: int, response: int) -> _Session:
        """Of a device's response; a new one is opened, and the one before closed."""
        name, before = f"{self._nonce}/{device}/{response}", self._sessions.get(device)
        if before is not None and before.name == name:
            return before
        if before is not None:
            self.connection.send(Up(close={"session": before.name}))
        found = self._sessions[device] = _Session(name, self._text(device, response))
        sampling = {"temperature": 0.0, "seed": self.seed, "request": f"{device}"}
        self.connection.send(Up(open={"session": name, "prompt": found.text.prompt_ids, "sampling": sampling}))
        return found

    def _text(self, device: int, response: int) -> RequestTrace:
        """The request that the source draws for a device's response."""
        one = np.array([device]), np.array([response])
        return self.texts[int(self._random.uniform(Purpose.RESPONSE, *one)[0] * len(self.texts))]

    def _here(self) -> tuple[float, Any] | None:
        return self.connection.poll(0.0)

    def _take_in(self, found: Sequence[tuple[float, Any]]) -> None:
        """What has arrived, all at once: devices that wait for the load's own machine would leave too late."""
        told: list[tuple[float, Any]] = []
        for moment_s, down in found:
            kind = down.WhichOneof("kind")
            if kind == "refused":
                self._refused(down.refused)
            elif kind == "verdict":
                told.append((moment_s - self._began_s, down.verdict))
        if told:
            self._answered(told)

    def _answered(self, told: Sequence[tuple[float, Any]]) -> None:
        pairs = [self._sent.pop(verdict.session) for _, verdict in told]
        for (_, sent), (_, verdict) in zip(pairs, told, strict=True):
            self._require_planned(sent, verdict)
        devices, moments = np.array([device for device, _ in pairs]), np.array([moment_s for moment_s, _ in told])
        found = self._devices.receive_answers(devices, moments, None)
        self._record(devices, [sent for _, sent in pairs], [verdict for _, verdict in told], moments, found)

    def _require_planned(self, sent: _Sent, verdict: Any) -> None:
        if verdict.status != Status.OK:
            raise SkitError(f"the server gave {Status(verdict.status).name}: it is behind; send it fewer devices")
        if len(verdict.path) != sent.accepted:
            raise SkitError(
                f"the server accepted {len(verdict.path)} of a draft where the trace says {sent.accepted}: the trace "
                "is of another pair, or the server's forwards round in another way"
            )

    def _refused(self, refused: Any) -> None:
        if Status(refused.status) not in RETRYABLE or refused.session not in self._sent:
            raise SkitError(f"the server refused a draft: {Status(refused.status).name}: {refused.reason}")
        self.connection.send(self._sent[refused.session][1].frame)

    def _record(
        self, devices: Integers, rounds: Sequence[_Sent], told: Sequence[Any], moments_s: Floats, found: AnsweredRounds
    ) -> None:
        """As the simulator keeps them; what the server did not tell of a round is its wire, half of it either way."""
        sent_s = np.array([one.sent_s for one in rounds])
        verify_s, queue_s = np.array([(one.verify_us / 1e6, one.queue_us / 1e6) for one in told]).T
        ended_s = moments_s - np.maximum(0.0, moments_s - sent_s - queue_s - verify_s) / 2
        started_s = ended_s - verify_s
        batches = np.array([self._place(*one) for one in zip(told, started_s.tolist(), ended_s.tolist(), strict=True)])
        asked = [(one.waiting.deadline_s, one.waiting.new, one.waiting.cached) for one in rounds]
        seen = np.column_stack([started_s - queue_s, asked])
        self._recorder.add_answers(devices, batches, (started_s, ended_s, sent_s), seen, found)

    def _place(self, told: Any, started_s: float, ended_s: float) -> int:
        """Of a batch, which is noted with its first answer, and what this one had computed."""
        if told.batch_number not in self._places:
            self._places[told.batch_number] = len(self._batches)
            expected_s = started_s + told.expected_us / 1e6
            self._batches.append([started_s, ended_s, expected_s, told.batch_size, told.waiting, 0, 0])
        place = self._places[told.batch_number]
        self._batches[place][5] += told.computed
        self._batches[place][6] += told.cached
        return place

    def _result(self, end_s: float) -> SimulationResult:
        for row in self._batches:
            self._recorder.batches.append(row)
        unanswered = [device for device, _ in self._sent.values()]
        events = len(self._late_s) + len(self._batches)
        return self._recorder.result(end_s, unanswered, events=events)
