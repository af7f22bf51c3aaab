"""Loads that keep a server busy: sessions whose next draft leaves so long after the last one is answered."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.latency import Row
from specbench_kit.live.connection import Connection
from specbench_kit.live.wire import Status, Up

LEAST = 6
"""Rounds of every session, however long they take."""
SPACE = 64
"""Tokens that a session may grow by before another takes its place."""


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """So many sessions, tokens in a draft and tokens before it; `cold`: each round is of a new session.

    A draft leaves `pause_s` after the last answer, as it does where it is made in the meantime.
    """

    sessions: int
    drafted: int
    context: int
    cold: bool = False
    pause_s: float = 0.0


class ObservedBatch(NamedTuple):
    """Its rows, the seconds of its verification, those by which one of its answers came behind another, and how many
    answers of the batch before it left when it had begun."""

    rows: list[Row]
    verify_s: float
    apart_s: float | None
    leaving: int


class BatchGap(NamedTuple):
    """From one verification to the next, for which a round waited already: answers of the first, and seconds."""

    answers: int
    seconds: float


class ObservedRound(NamedTuple):
    """One answer: seconds of the round trip, in the queue and of the verification, when it arrived, in which batch, and
    its row."""

    trip_s: float
    queue_s: float
    verify_s: float
    arrived_s: float
    batch: int
    row: Row


@dataclass(slots=True)
class _Session:
    name: str
    base: int
    round: int = 0
    sent_s: float = 0.0


@dataclass
class LoadGenerator:
    """Sessions at a server; drafts and prompts are one token again and again, since nobody reads the answers."""

    connection: Connection

    def __post_init__(self) -> None:
        self._numbers, self._nonce = count(), token_hex(8)
        self._sessions: dict[str, _Session] = {}
        self._due = deque[tuple[float, _Session]]()

    def rounds(self, load: SessionLoad, seconds: float) -> list[ObservedRound]:
        """All that were answered, in the order of their arrival; those sent first are answered last."""
        for _ in range(load.sessions):
            self._open(load)
        if not load.cold:
            self._warm(load)
        until_s, found = monotonic_s() + seconds, list[ObservedRound]()
        self._due.extend((0.0, session) for session in self._sessions.values())
        while self._sessions:
            session, one = self._receive(load)
            found.append(one)
            if monotonic_s() > until_s and len(found) >= LEAST * load.sessions:
                self._close(session)
            elif load.cold or session.base > load.context + SPACE:
                self._close(session)
                self._due.append((monotonic_s() + load.pause_s, self._open(load)))
            else:
                self._due.append((monotonic_s() + load.pause_s, session))
        return found

    def _warm(self, load: SessionLoad) -> None:
        """Bring every session's text into KV."""
        for session in self._sessions.values():
            self._send(session, load)
        for _ in range(load.sessions):
            self._receive(load)

    def _open(self, load: SessionLoad) -> _Session:
        session = _Session(f"{self._nonce}/{next(self._numbers)}", load.context)
        self._sessions[session.name] = session
        opening = {"session": session.name, "prompt": [1] * load.context, "sampling": {"request": "profile"}}
        self.connection.send(Up(open=opening))
        return session

    def _close(self, session: _Session) -> None:
        del self._sessions[session.name]
        self.connection.send(Up(close={"session": session.name}))

    def _send(self, session: _Session, load: SessionLoad) -> None:
        session.round, session.sent_s = session.round + 1, monotonic_s()
        draft = {"session": session.name, "round": session.round, "base": session.base, "tokens": [1] * load.drafted}
        self.connection.send(Up(draft=draft))

    def _frame(self, load: SessionLoad) -> tuple[float, Any]:
        """The next that arrives; drafts leave in the meantime when they are due."""
        while self._due:
            wait_s = self._due[0][0] - monotonic_s()
            if wait_s <= 0:
                self._send(self._due.popleft()[1], load)
            elif (found := self.connection.poll(wait_s)) is not None:
                return found
        return self.connection.receive()

    def _receive(self, load: SessionLoad) -> tuple[_Session, ObservedRound]:
        arrived_s, down = self._frame(load)
        while down.WhichOneof("kind") == "opened":
            arrived_s, down = self._frame(load)
        told: Any = down.verdict
        if down.WhichOneof("kind") != "verdict" or told.status != Status.OK:
            raise SkitError(f"the server gave no verdict but {str(down).strip()!r}: let nobody else use it")
        session = self._sessions[told.session]
        row = session.base - told.cached + load.drafted, told.cached
        session.base += len(told.path) + 1
        trip_s = arrived_s - session.sent_s
        return session, ObservedRound(
            trip_s, told.queue_us / 1e6, told.verify_us / 1e6, arrived_s, told.batch_number, row
        )


def observed_batches(rounds: Iterable[ObservedRound]) -> list[ObservedBatch]:
    """Rounds by the batch that they were verified in."""
    by_number = _by_batch(rounds)
    return [_batch(together, by_number.get(number - 1, [])) for number, together in by_number.items()]


def batch_gaps(rounds: Iterable[ObservedRound]) -> list[BatchGap]:
    """What a busy server takes between its verifications, by the first answers of each: the way here is the same."""
    together, found = _by_batch(rounds), list[BatchGap]()
    for number, after in together.items():
        if (before := together.get(number - 1)) is not None:
            seconds = _began_s(after) - min(one.arrived_s for one in before)
            if max(one.queue_s for one in after) > seconds > 0:
                found.append(BatchGap(len(before), seconds))
    return found


def transit_times(rounds: Iterable[ObservedRound], frame_s: float) -> list[float]:
    """Seconds that each round was on its way, as if its answer had left as the first of its batch."""
    found: list[float] = []
    for together in _by_batch(rounds).values():
        for place, one in enumerate(sorted(together, key=lambda one: one.arrived_s)):
            found.append(one.trip_s - one.queue_s - one.verify_s - place * frame_s)
    return found


def _by_batch(rounds: Iterable[ObservedRound]) -> dict[int, list[ObservedRound]]:
    by_number: dict[int, list[ObservedRound]] = {}
    for one in rounds:
        by_number.setdefault(one.batch, []).append(one)
    return by_number


def _began_s(batch: list[ObservedRound]) -> float:
    """When a verification began, as much later as an answer is on its way."""
    return min(one.arrived_s for one in batch) - batch[0].verify_s


def _batch(rounds: list[ObservedRound], before: list[ObservedRound]) -> ObservedBatch:
    moments, began_s = [one.arrived_s for one in rounds], _began_s(rounds)
    apart_s = (max(moments) - min(moments)) / (len(rounds) - 1) if len(rounds) > 1 else None
    leaving = sum(one.arrived_s > began_s for one in before)
    return ObservedBatch([one.row for one in rounds], rounds[0].verify_s, apart_s, leaving)
