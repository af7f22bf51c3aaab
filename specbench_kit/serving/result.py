"""What a simulation, or a load on a real server, leaves behind: rounds, responses and batches, in
tables by column.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.devices import AnsweredRounds, Devices

Table = Mapping[str, Floats]
"""One array per column, all of the same length."""

ROUND_COLUMNS = (
    "client", "slo", "batch", "started_s", "ended_s", "answered_s", "sent_s", "arrived_s", "deadline_s", "new",
    "cached", "response", "draft_s", "drafted", "submitted", "accepted", "committed",
)  # fmt: skip
"""Rounds in the order of their verification; those without one at the end have infinite times and
batch -1.
"""
RESPONSE_COLUMNS = ("client", "slo", "start_s", "first_s", "end_s", "prompt", "tokens", "committed")
"""Responses in the order of their end; unfinished ones come last, with an infinite `end_s`.

`tokens` is the length of the whole response, `committed` is how many of them there are at the end of the simulation.
"""
BATCH_COLUMNS = ("started_s", "ended_s", "expected_s", "size", "left_waiting", "new", "cached")
"""Batches in their order; `expected_s` is the end that the scheduler expected."""
SERVER_COLUMN = "server"
"""The server of each batch, which pools have."""


class RowBuffer:
    """A growing table of numbers, packed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._numbers = array("d")
        self.append = self._numbers.extend

    def extend(
        self, count: int, columns: Sequence[NDArray[Any] | float], *blocks: NDArray[Any]
    ) -> None:
        """Append `count` rows: single columns, or one number for all rows, and then blocks of
        several columns.
        """
        rows = np.empty((count, len(self._names)))
        first = len(columns)
        for index, column in enumerate(columns):
            rows[:, index] = column
        for block in blocks:
            rows[:, first : first + block.shape[1]] = block
            first += block.shape[1]
        self._numbers.frombytes(rows.tobytes())

    def change(self, row: int, name: str, number: float) -> None:
        """Replace one number."""
        self._numbers[row * len(self._names) + self._names.index(name)] = number

    def table(self, last: Table | None = None) -> dict[str, Floats]:
        """Return one array per column, with the rows of `last` at the end."""
        # Concatenation copies: nothing could be appended while arrays look into the packed numbers.
        rows = np.frombuffer(self._numbers, dtype=np.float64).reshape(-1, len(self._names))
        behind = last or dict.fromkeys(self._names, np.empty(0))
        return {
            name: np.concatenate([rows[:, index], behind[name]])
            for index, name in enumerate(self._names)
        }


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """A table by column, [columns, rows], of which the first `count` rows are written; the others
    are free.
    """

    names: Sequence[str]
    columns: Floats
    count: int

    def table(self, last: Table | None = None) -> dict[str, Floats]:
        """Return one array per column, with the rows of `last` at the end, which are written into
        the free rows.
        """
        more = 0 if last is None else len(last[self.names[0]])
        columns = self.columns
        if self.count + more > columns.shape[1]:
            columns = np.concatenate(
                [columns[:, : self.count], np.empty((len(self.names), more))], axis=1
            )
        if last is not None:
            for index, name in enumerate(self.names):
                columns[index, self.count : self.count + more] = last[name]
        return {name: columns[index, : self.count + more] for index, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Sessions whose KV had to be computed again elsewhere, by the server that had it.

    The router `moved` some away; the KV of others was `lost` when their server failed.
    """

    moved: tuple[int, ...]
    lost: tuple[int, ...]


@dataclass(frozen=True)
class SimulationResult:
    """Everything that happened up to `end_s` simulated seconds.

    `refusals` counts decisions of an idle server to verify nothing while requests waited, `idle_waiting_s` is the time
    that it stood idle so. `events` counts arrivals and batches. Several servers add up, but for the peak, which is the
    highest of one server; `pool` is None for a single server that never fails.
    """

    rounds: dict[str, Floats]
    responses: dict[str, Floats]
    batches: dict[str, Floats]
    end_s: float
    refusals: int = 0
    idle_waiting_s: float = 0.0
    evictions: int = 0
    peak_kv_tokens: int = 0
    events: int = 0
    pool: PoolCounts | None = None


class ResultRecorder:
    """The rounds, responses and batches so far."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._rounds = RowBuffer(ROUND_COLUMNS)
        self._responses = RowBuffer(RESPONSE_COLUMNS)
        self._batches = RowBuffer(BATCH_COLUMNS)
        self._servers = array("d")

    def add_batch(self, server: int, row: Sequence[float]) -> int:
        """Add a batch of the server with this index when it starts; return its number."""
        self._batches.append(row)
        self._servers.append(server)
        return len(self._servers) - 1

    def cut_batch(self, number: int, ended_s: float) -> None:
        """Note that a batch ended with its server, before its time."""
        for name in ("ended_s", "expected_s"):
            self._batches.change(number, name, ended_s)

    def add_answers(
        self,
        clients: Integers,
        batch: Integers | int,
        times: tuple[Floats | float, Floats | float, Floats],
        at_server: Floats,
        answered: AnsweredRounds,
    ) -> None:
        """Add answered rounds, and the responses that end with them.

        `times` are start and end of the verification and the moment of sending, `at_server` the rounds' fields
        `AT_SERVER` from before the answer.
        """
        slo = self._devices.slo[clients]
        rows = answered.rows
        started_s, ended_s, sent_s = times
        columns = (clients, slo, batch, started_s, ended_s, answered.answered_s, sent_s)
        self._rounds.extend(len(clients), columns, at_server, rows.recorded)
        (ends,) = rows.ends.nonzero()
        if len(ends):
            lengths = (rows.prompt, rows.tokens, rows.tokens)
            response = (
                clients,
                slo,
                answered.start_s,
                answered.first_s,
                answered.answered_s,
                *lengths,
            )
            self._responses.extend(len(ends), [column[ends] for column in response])

    def result(
        self,
        end_s: float,
        unanswered: Sequence[int],
        *,
        refusals: int = 0,
        idle_waiting_s: float = 0.0,
        evictions: int = 0,
        peak_kv_tokens: int = 0,
        events: int = 0,
        pool: PoolCounts | None = None,
        kept: Sequence[ColumnTable] = (),
    ) -> SimulationResult:
        """Return everything up to `end_s`; `unanswered` are the clients whose rounds are still at
        the server.

        `kept` are rounds, responses and batches if the compiled event loop kept them.
        """
        tables = kept or (self._rounds, self._responses, self._batches)
        clients = np.array(unanswered, dtype=np.int64)
        zeros = np.zeros(len(clients))
        rounds = self._devices.unanswered_rounds(clients)
        rounds |= {
            "client": clients.astype(np.float64),
            "slo": self._devices.slo[clients],
            "batch": zeros - 1,
        }
        rounds |= dict.fromkeys(("started_s", "ended_s", "answered_s"), zeros + inf)
        # How the rounds would have ended is drawn already, and nobody knows it yet.
        rounds |= dict.fromkeys(("submitted", "accepted", "committed"), zeros)
        batches = tables[2].table()
        if not kept:
            batches[SERVER_COLUMN] = np.array(self._servers)
        if pool is None:
            del batches[SERVER_COLUMN]
        return SimulationResult(
            tables[0].table(rounds),
            tables[1].table(self._devices.unfinished_responses(end_s)),
            batches,
            end_s,
            refusals,
            idle_waiting_s,
            evictions,
            peak_kv_tokens,
            events,
            pool,
        )
