"""Keeps a server busy: sessions that send their next draft a fixed time after each answer."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.latency import Row
from specbench_kit.live.connection import Connection
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import Down, Status, Up

MIN_ROUNDS = 6
"""Rounds of every session, however long they take."""
GROWTH = 64
"""Tokens that a session may grow by before another replaces it."""


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """A number of concurrent sessions with `drafted` tokens per draft after `context` tokens.

    `cold` loads use a new session for each round, whose text is not in KV. A draft leaves `pause_s` after the last
    answer, as from a device that drafts in between.
    """

    sessions: int
    drafted: int
    context: int
    cold: bool = False
    pause_s: float = 0.0


class ObservedBatch(NamedTuple):
    """A batch: its rows and duration, the mean time between its answers, and the answers sent during it.

    `spacing_s` is None for a batch of one. `leaving` is the number of answers of the previous batch that still left
    after this one had begun.
    """

    rows: list[Row]
    verify_s: float
    spacing_s: float | None
    leaving: int


class BatchGap(NamedTuple):
    """The time between two verifications while a round waited; `answers` is the size of the first batch."""

    answers: int
    seconds: float


class ObservedRound(NamedTuple):
    """An answered round: its times as the client and the server measured them, its batch, and its row."""

    trip_s: float
    queue_s: float
    verify_s: float
    arrived_s: float
    batch: int
    row: Row


@dataclass(slots=True)
class _ProfilingSession:
    """A session with its committed tokens and its latest round."""

    name: str
    base: int
    round: int = 0
    sent_s: float = 0.0


@dataclass
class LoadGenerator:
    """Sessions at a server. Drafts and prompts repeat one token, since nobody reads the answers."""

    connection: Connection

    def __post_init__(self) -> None:
        self._numbers = count()
        self._nonce = token_hex(8)
        self._sessions: dict[str, _ProfilingSession] = {}
        self._due = deque[tuple[float, _ProfilingSession]]()
        """Sessions that are to send a draft, each with the time for it, the earliest first."""

    def rounds(self, load: SessionLoad, seconds: float) -> list[ObservedRound]:
        """Run a load for some seconds and return its answered rounds in the order of their arrival."""
        for _ in range(load.sessions):
            self._open(load)
        if not load.cold:
            # The first round of each session brings its text into KV, and is not measured.
            for session in self._sessions.values():
                self._send(session, load)
            for _ in range(load.sessions):
                self._receive(load)
        end_s = monotonic_s() + seconds
        rounds = list[ObservedRound]()
        self._due.extend((0.0, session) for session in self._sessions.values())
        while self._sessions:
            session, answered = self._receive(load)
            rounds.append(answered)
            if monotonic_s() > end_s and len(rounds) >= MIN_ROUNDS * load.sessions:
                self._close(session)
            elif load.cold or session.base > load.context + GROWTH:
                self._close(session)
                self._due.append((monotonic_s() + load.pause_s, self._open(load)))
            else:
                self._due.append((monotonic_s() + load.pause_s, session))
        return rounds

    def _open(self, load: SessionLoad) -> _ProfilingSession:
        session = _ProfilingSession(f"{self._nonce}/{next(self._numbers)}", load.context)
        self._sessions[session.name] = session
        sampling = messages.Sampling(request="profile")
        prompt = [1] * load.context
        self.connection.send(Up(open=messages.Open(session=session.name, prompt=prompt, sampling=sampling)))
        return session

    def _close(self, session: _ProfilingSession) -> None:
        del self._sessions[session.name]
        self.connection.send(Up(close=messages.Close(session=session.name)))

    def _send(self, session: _ProfilingSession, load: SessionLoad) -> None:
        session.round = session.round + 1
        session.sent_s = monotonic_s()
        draft = messages.Draft(session=session.name, round=session.round, base=session.base, tokens=[1] * load.drafted)
        self.connection.send(Up(draft=draft))

    def _next_frame(self, load: SessionLoad) -> tuple[float, Down]:
        """Return the next frame with its time of arrival, and meanwhile send the drafts that become due."""
        while self._due:
            wait_s = self._due[0][0] - monotonic_s()
            if wait_s <= 0:
                self._send(self._due.popleft()[1], load)
            elif (answer := self.connection.poll(wait_s)) is not None:
                return answer
        return self.connection.receive()

    def _receive(self, load: SessionLoad) -> tuple[_ProfilingSession, ObservedRound]:
        """Return the next answered round with its session."""
        arrived_s, frame = self._next_frame(load)
        while frame.WhichOneof("kind") == "opened":
            arrived_s, frame = self._next_frame(load)
        verdict = frame.verdict
        if frame.WhichOneof("kind") != "verdict" or verdict.status != Status.OK:
            raise SkitError(f"the server gave no verdict but {str(frame).strip()!r}: let nobody else use it")
        session = self._sessions[verdict.session]
        row = session.base - verdict.cached + load.drafted, verdict.cached
        session.base += len(verdict.path) + 1
        return session, ObservedRound(
            trip_s=arrived_s - session.sent_s,
            queue_s=verdict.queue_us / 1e6,
            verify_s=verdict.verify_us / 1e6,
            arrived_s=arrived_s,
            batch=verdict.batch_number,
            row=row,
        )


def observed_batches(rounds: Iterable[ObservedRound]) -> list[ObservedBatch]:
    """Return the batches in which rounds were verified."""
    batches = []
    by_number = _by_batch(rounds)
    for number, batch in by_number.items():
        arrivals_s = [answered.arrived_s for answered in batch]
        began_s = _began_s(batch)
        spacing_s = (max(arrivals_s) - min(arrivals_s)) / (len(batch) - 1) if len(batch) > 1 else None
        leaving = sum(answered.arrived_s > began_s for answered in by_number.get(number - 1, []))
        batches.append(ObservedBatch([answered.row for answered in batch], batch[0].verify_s, spacing_s, leaving))
    return batches


def batch_gaps(rounds: Iterable[ObservedRound]) -> list[BatchGap]:
    """Return the gaps between successive batches for which a round waited already.

    A gap lies between the first answer of one batch and the beginning of the next. Both are seen one way over the
    network later, so that this way cancels out.
    """
    gaps = list[BatchGap]()
    by_number = _by_batch(rounds)
    for number, batch in by_number.items():
        if (previous := by_number.get(number - 1)) is not None:
            seconds = _began_s(batch) - min(answered.arrived_s for answered in previous)
            if max(answered.queue_s for answered in batch) > seconds > 0:
                gaps.append(BatchGap(len(previous), seconds))
    return gaps


def transit_times(rounds: Iterable[ObservedRound], frame_s: float) -> list[float]:
    """Return the seconds of each round outside queue and verification, as if its answer were the first of its batch.

    The answers of a batch leave one after the other, each `frame_s` after the one before.
    """
    seconds: list[float] = []
    for batch in _by_batch(rounds).values():
        for position, answered in enumerate(sorted(batch, key=lambda answered: answered.arrived_s)):
            seconds.append(answered.trip_s - answered.queue_s - answered.verify_s - position * frame_s)
    return seconds


def _by_batch(rounds: Iterable[ObservedRound]) -> dict[int, list[ObservedRound]]:
    by_number: dict[int, list[ObservedRound]] = {}
    for answered in rounds:
        by_number.setdefault(answered.batch, []).append(answered)
    return by_number


def _began_s(batch: list[ObservedRound]) -> float:
    """Return the beginning of a verification on the client's clock, later by an answer's way over the network."""
    return min(answered.arrived_s for answered in batch) - batch[0].verify_s
