"""Requests that are summarised together, and their rounds as columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import Units
from specbench_kit.runs.deployment import DeploymentDescription

Array = NDArray[np.float64]
Metrics = dict[str, Any]
"""Values by the names of `vocabulary.py`: numbers or None, distributions by statistic, lists,
intervals by metric.
"""


class RoundColumns:
    """The rounds of finished requests as columns with one entry per round; `request` is the index
    of its request.
    """

    def __init__(self, finished: Sequence[RequestRecord]) -> None:
        self._rounds = [r for record in finished for r in record.rounds]
        self.count = len(self._rounds)
        self.requests = len(finished)
        self.request = np.repeat(
            np.arange(len(finished)), [len(record.rounds) for record in finished]
        )
        self.names = [record.request_id for record in finished]
        self.commits_s = [r.commits_s for r in self._rounds]
        self.constrained = any(record.grammar is not None for record in finished)
        """True if the requests' outputs had to follow a grammar."""
        self._columns = {"rounds": np.ones(self.count)}
        self._forced_first = [record.forced_first for record in finished]

    def __getitem__(self, column: str) -> Array:
        """Return a field of the rounds, or a quantity derived from fields; it is computed once."""
        if column not in self._columns:
            self._columns[column] = self._compute(column)
        return self._columns[column]

    def _compute(self, name: str) -> Array:
        if name == "skipped":
            # Those that an output begins with join it with the request's first round.
            begins = np.diff(self.request, prepend=-1) > 0
            skipped: Array = self["forced"].copy()
            skipped[begins] += np.array(self._forced_first, dtype=np.float64)[self.request[begins]]
            return skipped
        if name in ("submitted_choices", "accepted_choices"):
            drafts = name.removesuffix("_choices")
            return self[drafts] - self[f"forced_{drafts}"]
        if name == "joined":
            return self["committed"] + self["skipped"]
        if name == "proactive_rounds":
            return (self["proactive"] > 0).astype(np.float64)
        if name == "after_pause":
            # Request numbers rise, so that the round before is of the same request unless this is
            # its first.
            begins = np.diff(self.request, prepend=-1) > 0
            paused = np.roll(self["drafted"] == 0, 1) & ~begins
            after: Array = (paused & (self["submitted"] > 0)).astype(np.float64)
            return after
        if name == "accepted_after_pause":
            return self["after_pause"] * (self["accepted"] > 0)
        if name == "accepted_expecting":
            return self["accepted"] * self["expecting"]
        if name == "expecting":
            return np.array([r.expected is not None for r in self._rounds], dtype=np.float64)
        if name == "expected":
            return np.array([r.expected or 0.0 for r in self._rounds], dtype=np.float64)
        return np.array(list(map(attrgetter(name), self._rounds)), dtype=np.float64)

    def sum(self, column: str) -> float:
        """Return the sum over all rounds."""
        return float(self[column].sum())

    def per_request(self, column: str) -> Array:
        """Return the sums over each request's rounds: shape (requests,)."""
        return np.bincount(self.request, weights=self[column], minlength=self.requests).astype(
            np.float64
        )

    def per_unit(self, column: str, units: Units) -> Array:
        """Return the sums over the rounds of each unit: shape (units,)."""
        numbers = np.array([units[name] for name in self.names], dtype=np.int64)
        return np.bincount(numbers, weights=self.per_request(column)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class KeptMetrics:
    """Metrics of a group, with all that they depend on beside its records.

    `units` are the numbers of the group's requests, counted in order of first appearance.
    """

    baseline: "RequestGroup"
    units: tuple[int, ...]
    deployment: DeploymentDescription | None
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class KeptRunMetrics:
    """Metrics of a run as a whole, with all that they depend on beside its records."""

    makespan_s: float | None
    cost: float | None
    slo_tpot_s: float | None
    deployment: DeploymentDescription | None
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Kept:
    """What was computed of requests, whatever their ids: summary, page and tables take it from here."""

    own: list[KeptMetrics] = field(default_factory=list)
    of_runs: list[KeptRunMetrics] = field(default_factory=list)


@dataclass(frozen=True)
class RequestGroup:
    """Requests that are summarised together: a run, or one category of it, which is a part of the
    `whole`.

    A group's own metrics are computed once, whoever asks: the run's summary, its page, and the
    table of many runs.
    """

    records: Sequence[RequestRecord]
    whole: "RequestGroup | None" = field(default=None, compare=False, repr=False)
    kept: Kept = field(default_factory=Kept, compare=False, repr=False)

    @cached_property
    def finished(self) -> list[RequestRecord]:
        """The requests that did not end in an error."""
        return [r for r in self.records if r.finish_reason != "error"]

    @cached_property
    def rounds(self) -> RoundColumns:
        """The rounds of the finished requests."""
        return RoundColumns(self.finished)

    @cached_property
    def makespan_s(self) -> float:
        """When the last request of a run finished, in seconds since the run's start."""
        return max((record.finished_s or 0.0 for record in self.records), default=0.0)

    @cached_property
    def categories(self) -> "dict[str, RequestGroup]":
        """The parts of the group by category, in order of first appearance."""
        parts: dict[str, list[RequestRecord]] = {}
        for record in self.records:
            parts.setdefault(record.category, []).append(record)
        # With a single category the group itself is its part, and its columns are computed once.
        return {
            name: self if len(parts) == 1 else RequestGroup(part, self)
            for name, part in parts.items()
        }

    def named_after(self, dataset: str) -> "RequestGroup":
        """Return the same requests, with ids and dialogues that name their dataset; they keep the
        same metrics.
        """
        renamed = []
        for record in self.records:
            dialogue = f"{dataset}/{record.dialogue}" if record.dialogue else ""
            renamed.append(
                structs.replace(
                    record, request_id=f"{dataset}/{record.request_id}", dialogue=dialogue
                )
            )
        return RequestGroup(renamed, kept=self.kept)


NO_REQUESTS = RequestGroup(())


class BesideBaseline:
    """What has a method's requests and the same requests decoded plainly, if they were."""

    __slots__ = ()
    group: RequestGroup
    plain: RequestGroup

    @property
    def records(self) -> Sequence[RequestRecord]:
        """The method's requests."""
        return self.group.records

    @property
    def baseline(self) -> Sequence[RequestRecord]:
        """The same requests decoded plainly; empty if they were not."""
        return self.plain.records


@dataclass(frozen=True, slots=True)
class RunRequests(BesideBaseline):
    """The requests of a run and of its baseline."""

    group: RequestGroup
    plain: RequestGroup


def together(groups: Sequence[RequestGroup]) -> RequestGroup:
    """Return the requests of all groups as one; a single group is itself."""
    return (
        groups[0]
        if len(groups) == 1
        else RequestGroup([record for group in groups for record in group.records])
    )


def finite_or_none(value: float) -> float | None:
    """Return the value; None if it is NaN, which stands for what another tool's records do not
    hold.
    """
    return value if isfinite(value) else None
