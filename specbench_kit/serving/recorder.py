"""Collects what happens to devices, in a simulation or at a real server, into a `SimulationResult`."""

from collections.abc import Sequence
from math import inf

import numpy as np

from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.devices import AnsweredRounds, Devices
from specbench_kit.serving.result import BATCH_COLUMNS, RESPONSE_COLUMNS, ROUND_COLUMNS, RowBuffer, SimulationResult


class ResultRecorder:
    """The rounds, responses and batches so far."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._rounds, self._responses = RowBuffer(ROUND_COLUMNS), RowBuffer(RESPONSE_COLUMNS)
        self.batches = RowBuffer(BATCH_COLUMNS)

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
        slo, rows = self._devices.slo[clients], answered.rows
        started_s, ended_s, sent_s = times
        columns = (clients, slo, batch, started_s, ended_s, answered.answered_s, sent_s)
        self._rounds.extend(len(clients), columns, at_server, rows.recorded)
        (ends,) = rows["ends"].nonzero()
        if len(ends):
            lengths = (rows["prompt"], rows["tokens"], rows["tokens"])
            response = (clients, slo, answered.start_s, answered.first_s, answered.answered_s, *lengths)
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
    ) -> SimulationResult:
        """Return everything up to `end_s`; `unanswered` are the clients whose rounds are still at the server."""
        clients = np.array(unanswered, dtype=np.int64)
        zeros = np.zeros(len(clients))
        rounds = self._devices.unanswered_rounds(clients)
        rounds |= {"client": clients.astype(np.float64), "slo": self._devices.slo[clients], "batch": zeros - 1}
        rounds |= dict.fromkeys(("started_s", "ended_s", "answered_s"), zeros + inf)
        # How the rounds would have ended is drawn already, and nobody knows it yet.
        rounds |= dict.fromkeys(("submitted", "accepted", "committed"), zeros)
        return SimulationResult(
            self._rounds.table(rounds),
            self._responses.table(self._devices.unfinished_responses(end_s)),
            self.batches.table(),
            end_s,
            refusals,
            idle_waiting_s,
            evictions,
            peak_kv_tokens,
            events,
        )
