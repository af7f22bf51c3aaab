"""Drives a real server with the simulator's devices in real time; only drafting and the link are
modelled.

The server's answers are compared with those of the trace whose drafts the devices send.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from secrets import token_hex

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.latency import Row
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.protocol.verification_pb2 import Verdict
from specbench_kit.live.wire import RETRYABLE, Down, Status, Up
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.serving.arrays import Integers
from specbench_kit.serving.counter_rng import CounterRng, Purpose
from specbench_kit.serving.devices import Devices
from specbench_kit.serving.result import ResultRecorder, SimulationResult
from specbench_kit.serving.round_table import RoundOutcomes
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.studies.load.report import AnswerShares
from specbench_kit.traces.trace import NO_TOKEN, RequestTrace


@dataclass(slots=True)
class ServerAnswerCounts:
    """Counts of a server's answers, of which `AnswerShares` says what each means."""

    rounds: int = 0
    differing: int = 0
    degraded: int = 0
    refusals: int = 0
    responses: int = 0
    left_trace: int = 0

    def describe(self) -> AnswerShares:
        """Return counts and shares as the summary holds them."""
        return AnswerShares(
            rounds=self.rounds,
            responses=self.responses,
            differing=ratio_of_sums(self.differing, self.rounds),
            left_trace=ratio_of_sums(self.left_trace, self.responses),
            degraded=ratio_of_sums(self.degraded, self.rounds),
            refusals=self.refusals,
        )


def is_recorded(
    request: RequestTrace, offset: int, tokens: Sequence[int], verdict: Verdict
) -> bool:
    """Return True if the recorded target gives the same verdict on `tokens` after `offset` tokens
    of output.

    A bonus token behind the end of what was recorded counts as the same.
    """
    recorded = [*request.output_ids, *request.continuation][offset:]
    accepted = 0
    if verdict.status != Status.DEGRADED:
        matches = [token == right for token, right in zip(tokens, recorded, strict=False)]
        accepted = [*matches, False].index(False)
    return len(verdict.path) == accepted and recorded[accepted : accepted + 1] in (
        [],
        [verdict.bonus],
    )


SHORTEST_DEADLINE_MS = 0.001
"""Sent for a deadline that has passed; 0 would mean that there is none."""


@dataclass(slots=True)
class _SentRound:
    """A round at the server: as schedulers see it, and its frame."""

    waiting: WaitingRound
    frame: Up
    sent_s: float

    @property
    def device(self) -> int:
        return self.waiting.client


@dataclass(slots=True)
class _DeviceSession:
    """The session of a device's current response, with the request that it replays and its rounds
    so far.
    """

    name: str
    request: RequestTrace
    rounds: int = 0
    left_trace: bool = False
    """True once an answer of the server was not the recorded one."""


@dataclass(frozen=True, slots=True)
class DrivenLoad:
    """The result of a load, and by how many seconds drafts left late: the median and the 99th
    percentile.

    `batch_rows` are the new and the cached tokens of each round by batch, in the order of the result's batches.
    """

    result: SimulationResult
    late_s: tuple[float, float]
    answers: ServerAnswerCounts
    batch_rows: Sequence[Sequence[Row]]


@dataclass
class LoadDriver:
    """Runs one scenario against a server; `requests` are those with rounds, in the order of the
    scenario's source.

    Drafting and the link take the time of the scenario's deployment, for every device
    independently. Devices follow the server's answers, which need not be those of the trace: they
    go on with the recorded drafts behind as many tokens as the server has committed.
    """

    scenario: Scenario
    seed: int
    connection: Connection
    requests: Sequence[RequestTrace]
    _sessions: dict[int, _DeviceSession] = field(default_factory=dict)
    """Sessions by device."""
    _in_flight: dict[str, _SentRound] = field(default_factory=dict)
    """Rounds at the server by session."""
    _batch_rows: dict[int, int] = field(default_factory=dict)
    """Rows of `_batches` by the server's number of the batch."""
    _batches: list[list[float]] = field(default_factory=list)
    """Rows of the result's table of batches."""
    _batch_shapes: list[list[Row]] = field(default_factory=list)
    """New and cached tokens of the rounds of each batch."""
    _late_s: list[float] = field(default_factory=list)
    _refused: list[tuple[float, str]] = field(default_factory=list)
    """A heap of sessions whose drafts were refused, by the time at which they are sent again."""

    def __post_init__(self) -> None:
        scenario = self.scenario
        self._devices = Devices(scenario, self.seed, follow_answers=True)
        self._random = CounterRng(f"{self.seed}/{scenario.deployment.link.seed}", scenario.devices)
        self._nonce = token_hex(8)
        self._recorder = ResultRecorder(self._devices)
        self._began_s = 0.0
        self._answers = ServerAnswerCounts()

    def run(self) -> DrivenLoad:
        """Run until the scenario's end; raise SkitError if the connection is lost before."""
        try:
            self._run()
        except ConnectionLostError as lost:
            raise SkitError(
                f"the load ended after {self._now_s():.0f} s, because the server is gone: {lost}"
            ) from lost
        for row in self._batches:
            self._recorder.add_batch(0, row)
        unanswered = [sent.device for sent in self._in_flight.values()]
        events = len(self._late_s) + len(self._batches)
        result = self._recorder.result(self.scenario.duration_s, unanswered, events=events)
        median_s, late_s = np.quantile(self._late_s or [0.0], [0.5, 0.99]).tolist()
        return DrivenLoad(result, (median_s, late_s), self._answers, self._batch_shapes)

    def _run(self) -> None:
        self._began_s, end_s = monotonic_s(), self.scenario.duration_s
        while (now_s := self._now_s()) < end_s:
            arrived = self._devices.arrived(now_s)
            if len(arrived):
                self._send(arrived, now_s)
            while self._refused and self._refused[0][0] <= now_s:
                self.connection.send(self._in_flight[heappop(self._refused)[1]].frame)
            again_s = self._refused[0][0] if self._refused else inf
            wait_s = min(end_s, again_s, float(self._devices.arrives_s.min())) - self._now_s()
            frames = list[tuple[float, Down]]()
            # All frames that have arrived are handled at once: the devices' next drafts would leave
            # late otherwise.
            while (
                arrival := self.connection.poll(0.0 if frames else max(0.0, wait_s))
            ) is not None:
                frames.append(arrival)
            self._take_frames(frames)

    def _now_s(self) -> float:
        return monotonic_s() - self._began_s

    def _send(self, devices: Integers, now_s: float) -> None:
        """Send the rounds that would reach the server now.

        The uplink is modelled: a draft leaves this machine at its time of arrival, not at its time
        of sending.
        """
        columns = self._devices.unanswered_rounds(devices)
        for index, waiting in enumerate(self._devices.take_arrived(devices)):
            response, submitted = (int(columns[name][index]) for name in ("response", "submitted"))
            session = self._session(waiting.client, response)
            session.rounds += 1
            context = waiting.new + waiting.cached - submitted
            drafted = session.request.drafted[context - len(session.request.prompt_ids), :submitted]
            budgets_s = (
                waiting.deadline_s - waiting.arrived_s,
                waiting.response_deadline_s - waiting.arrived_s,
            )
            round_ms, remaining_ms = (
                max(SHORTEST_DEADLINE_MS, 1e3 * budget_s) for budget_s in budgets_s
            )
            draft = messages.Draft(
                session=session.name,
                round=session.rounds,
                base=context,
                tokens=drafted[drafted != NO_TOKEN].tolist(),
                round_ms=round_ms,
                remaining_ms=remaining_ms,
            )
            sent = _SentRound(waiting, Up(draft=draft), self._now_s())
            self._in_flight[session.name] = sent
            self.connection.send(sent.frame)
            self._late_s.append(now_s - waiting.arrived_s)

    def _session(self, device: int, response: int) -> _DeviceSession:
        """Return the session of a device's response; a new response closes the one before and opens
        its own.
        """
        name = f"{self._nonce}/{device}/{response}"
        previous = self._sessions.get(device)
        if previous is not None and previous.name == name:
            return previous
        if previous is not None:
            self.connection.send(Up(close=messages.Close(session=previous.name)))
        # The draw that the scenario's source makes too: the server gets the request whose rounds
        # the devices replay.
        draw = self._random.uniform(Purpose.RESPONSE, np.array([device]), np.array([response]))[0]
        request = self.requests[int(draw * len(self.requests))]
        session = self._sessions[device] = _DeviceSession(name, request)
        self._answers.responses += 1
        sampling = messages.Sampling(temperature=0.0, seed=self.seed, request=f"{device}")
        self.connection.send(
            Up(open=messages.Open(session=name, prompt=request.prompt_ids, sampling=sampling))
        )
        return session

    def _take_frames(self, frames: Sequence[tuple[float, Down]]) -> None:
        """Note when refused rounds are to be sent again, and let the devices go on whose rounds
        were verified.
        """
        rounds = list[_SentRound]()
        verdicts = list[messages.Verdict]()
        arrivals_s = list[float]()
        for arrived_s, frame in frames:
            kind = frame.WhichOneof("kind")
            if kind == "refused":
                refused = frame.refused
                if (
                    Status(refused.status) not in RETRYABLE
                    or refused.session not in self._in_flight
                ):
                    raise SkitError(
                        f"the server refused a draft: {Status(refused.status).name}: {refused.reason}"
                    )
                self._answers.refusals += 1
                heappush(self._refused, (self._now_s() + refused.retry_ms / 1e3, refused.session))
            elif kind == "verdict":
                sent = self._in_flight.pop(frame.verdict.session)
                self._count(sent, frame.verdict)
                rounds.append(sent)
                verdicts.append(frame.verdict)
                arrivals_s.append(arrived_s - self._began_s)
        if rounds:
            self._record(rounds, verdicts, arrivals_s)

    def _count(self, sent: _SentRound, verdict: messages.Verdict) -> None:
        """Count an answer, and note if it is not the one that was recorded."""
        if verdict.status not in (Status.OK, Status.DEGRADED):
            raise SkitError(
                f"the server answered {Status(verdict.status).name} to a draft: let nobody else use it"
            )
        draft = sent.frame.draft
        session = self._sessions[sent.device]
        counts = self._answers
        counts.rounds += 1
        counts.degraded += verdict.status == Status.DEGRADED
        offset = draft.base - len(session.request.prompt_ids)
        if not is_recorded(session.request, offset, draft.tokens, verdict):
            counts.differing += 1
            counts.left_trace += not session.left_trace
            session.left_trace = True

    def _record(
        self,
        rounds: Sequence[_SentRound],
        verdicts: Sequence[messages.Verdict],
        arrivals_s: Sequence[float],
    ) -> None:
        """Deliver answers to the devices, and record them as the simulator does.

        The server reports queue and verification. The remaining time of a round is its way over the
        network, of which half is counted before and half after the verification.
        """
        devices = np.array([sent.device for sent in rounds])
        arrived_s = np.array(arrivals_s)
        outcomes = [
            (len(sent.frame.draft.tokens), len(verdict.path))
            for sent, verdict in zip(rounds, verdicts, strict=True)
        ]
        answered = self._devices.receive_answers(
            devices, arrived_s, None, RoundOutcomes(*np.array(outcomes).T)
        )
        sent_s = np.array([sent.sent_s for sent in rounds])
        verify_s, queue_s = np.array(
            [(verdict.verify_us / 1e6, verdict.queue_us / 1e6) for verdict in verdicts]
        ).T
        ended_s = arrived_s - np.maximum(0.0, arrived_s - sent_s - queue_s - verify_s) / 2
        started_s = ended_s - verify_s
        rows = [
            self._batch_row(verdict, *times)
            for verdict, *times in zip(verdicts, started_s.tolist(), ended_s.tolist(), strict=True)
        ]
        planned = [
            (sent.waiting.deadline_s, sent.waiting.new, sent.waiting.cached) for sent in rounds
        ]
        at_server = np.column_stack([started_s - queue_s, planned])
        # The modelled uplink lies before the real sending, and is a part of the device's round
        # trip.
        uplink_s = np.array([sent.waiting.arrived_s for sent in rounds]) - answered.sent_s
        times = (started_s, ended_s, sent_s - uplink_s)
        self._recorder.add_answers(devices, np.array(rows), times, at_server, answered)

    def _batch_row(self, verdict: messages.Verdict, started_s: float, ended_s: float) -> int:
        """Return the row of a verdict's batch, which its first verdict adds and every verdict adds
        its tokens to.
        """
        if verdict.batch_number not in self._batch_rows:
            self._batch_rows[verdict.batch_number] = len(self._batches)
            expected_s = started_s + verdict.expected_us / 1e6
            self._batches.append(
                [started_s, ended_s, expected_s, verdict.batch_size, verdict.waiting, 0, 0]
            )
            self._batch_shapes.append([])
        row = self._batch_rows[verdict.batch_number]
        self._batch_shapes[row].append((verdict.computed, verdict.cached))
        self._batches[row][5] += verdict.computed
        self._batches[row][6] += verdict.cached
        return row
