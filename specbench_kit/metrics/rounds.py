"""Requests that are summarised together, and their rounds as columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.units import Units

Array = NDArray[np.float64]
Metrics = dict[str, Any]

LISTS = ("commits_s", "parents", "path")
"""Fields of a round that are lists, and no column."""


class Rounds:
    """The rounds of finished requests as columns, one entry per round; `request` says whose round it is."""

    def __init__(self, finished: Sequence[RequestRecord]) -> None:
        rounds = [r for record in finished for r in record.rounds]
        self.count = len(rounds)
        self.requests = len(finished)
        self.request = np.repeat(np.arange(len(finished)), [len(record.rounds) for record in finished])
        self.names = [record.request_id for record in finished]
        self.commits_s = [r.commits_s for r in rounds]
        self._columns = {
            f.name: np.array([getattr(r, f.name) for r in rounds], dtype=np.float64)
            for f in fields(RoundRecord)
            if f.name not in LISTS
        }
        self._columns["rounds"] = np.ones(len(rounds))
        self._columns["proactive_rounds"] = (self["proactive"] > 0).astype(np.float64)

    def __getitem__(self, column: str) -> Array:
        return self._columns[column]

    def sum(self, column: str) -> float:
        return float(self[column].sum())

    def per_request(self, column: str) -> Array:
        """Sums over each request's rounds: shape (requests,)."""
        return np.bincount(self.request, weights=self[column], minlength=self.requests).astype(np.float64)

    def per_unit(self, column: str, units: Units) -> Array:
        """Sums over all rounds of a unit: shape [units of all]."""
        numbers = np.array([units[name] for name in self.names], dtype=np.int64)
        return np.bincount(numbers, weights=self.per_request(column)).astype(np.float64)


@dataclass(frozen=True)
class Group:
    """Requests that are summarised together: a run, or one category of it."""

    records: Sequence[RequestRecord]

    @cached_property
    def finished(self) -> list[RequestRecord]:
        return [r for r in self.records if r.finish_reason != "error"]

    @cached_property
    def rounds(self) -> Rounds:
        return Rounds(self.finished)


def by_category(records: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Records by category, in order of first appearance."""
    parts: dict[str, list[RequestRecord]] = {}
    for record in records:
        parts.setdefault(record.category, []).append(record)
    return parts


def known(value: float) -> float | None:
    """None for what another tool's records do not say."""
    return value if isfinite(value) else None
