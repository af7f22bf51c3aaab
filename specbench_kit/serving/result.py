"""What a simulation leaves behind, in columns."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

ROUND_COLUMNS = (
    "client", "slo", "batch", "started_s", "ended_s", "answered_s", "sent_s", "arrived_s", "deadline_s", "new",
    "cached", "response", "draft_s", "drafted", "submitted", "accepted", "committed",
)  # fmt: skip
"""Rounds in the order of their verification; those that still waited at the end have infinite times and no batch."""
RESPONSE_COLUMNS = ("client", "slo", "start_s", "first_s", "end_s", "prompt", "tokens", "committed")
"""Responses in the order of their end; those that went on at the end come last, with an infinite `end_s`.

`tokens` is the length of the whole response, `committed` what was there at the end of the simulation.
"""
BATCH_COLUMNS = ("started_s", "ended_s", "expected_s", "size", "left_waiting", "new", "cached")
"""Batches in their order; `expected_s` is what the scheduler thought."""


class RowBuffer:
    """Rows that are appended one after the other, packed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._numbers = array("d")
        self.append = self._numbers.extend

    def extend(self, count: int, columns: Sequence[NDArray[Any] | float], *blocks: NDArray[Any]) -> None:
        """So many rows at once: single columns, where a number is the same in all rows, then several side by side."""
        rows, first = np.empty((count, len(self._names))), len(columns)
        for place, column in enumerate(columns):
            rows[:, place] = column
        for block in blocks:
            rows[:, first : first + block.shape[1]] = block
            first += block.shape[1]
        self._numbers.frombytes(rows.tobytes())

    def table(self, last: Mapping[str, Any] | None = None) -> dict[str, Column]:
        """One array per name, with some rows behind the others."""
        # A copy, since nothing can be appended while arrays look into the packed numbers.
        rows = np.frombuffer(self._numbers, dtype=np.float64).reshape(-1, len(self._names))
        behind = last or dict.fromkeys(self._names, ())
        return {name: np.concatenate([rows[:, place], behind[name]]) for place, name in enumerate(self._names)}


@dataclass(frozen=True)
class SimulationResult:
    """Everything that happened up to `end_s` seconds of simulated time, in tables by column.

    `refusals` are decisions of an idle server to verify nothing while requests waited, `idle_waiting_s` the time that
    it stood idle so. `events` are arrivals and batches.
    """

    rounds: dict[str, Column]
    responses: dict[str, Column]
    batches: dict[str, Column]
    end_s: float
    refusals: int
    idle_waiting_s: float
    evictions: int
    peak_kv_tokens: int
    events: int

    def same_as(self, other: "SimulationResult") -> bool:
        """Whether every number is the same."""
        return _equal(self, other)


def _equal(one: Any, other: Any) -> bool:
    tables = ("rounds", "responses", "batches")
    plain = ("end_s", "refusals", "idle_waiting_s", "evictions", "peak_kv_tokens", "events")
    return all(getattr(one, name) == getattr(other, name) for name in plain) and all(
        np.array_equal(getattr(one, table)[name], getattr(other, table)[name])
        for table in tables
        for name in getattr(one, table)
    )
