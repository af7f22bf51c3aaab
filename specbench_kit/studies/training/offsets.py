"""A trace as flat arrays: one row per output offset, each a place where a round may start."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import DRAFT_POSITION
from specbench_kit.traces.conversations import Conversations
from specbench_kit.traces.trace import STATISTICS, RequestTrace, TraceFile

Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]

NOTHING = -1
"""Stands where the target's answer is not on record; no token equals it."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of all requests, in order.

    Per offset [n]: `conversation` and `request` are indices, `context` is the tokens up to here, those of the prompt
    included, `remaining` the output's tokens from here on, `matched` the leading drafted tokens that the target says
    too, `judged` the drafted tokens that it is known to say or not to say. `statistics` is [n, max_draft, 5], as a
    trace has them.
    """

    conversation: Integers
    request: Integers
    context: Integers
    remaining: Integers
    matched: Integers
    judged: Integers
    statistics: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.matched)

    @property
    def max_draft(self) -> int:
        """Tokens drafted at every offset."""
        return int(self.statistics.shape[1])

    @property
    def first(self) -> Integers:
        """Each request's first offset."""
        return np.flatnonzero(np.diff(self.request, prepend=-1))

    def take(self, rows: "Mask | Integers") -> Self:
        """Some of the offsets; whole requests, where rounds are to be played on them."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def cut(self, max_draft: int) -> Self:
        """The same offsets as if at most that many tokens had been drafted."""
        matched, judged = np.minimum(self.matched, max_draft), np.minimum(self.judged, max_draft)
        return replace(self, matched=matched, judged=judged, statistics=self.statistics[:, :max_draft])

    def features(self, names: Sequence[str]) -> NDArray[np.float32]:
        """[n, max_draft, features] of every drafted token."""
        place = np.broadcast_to(np.arange(1, self.max_draft + 1, dtype=np.float32), self.statistics.shape[:2])
        columns = dict(zip(STATISTICS, np.moveaxis(self.statistics, -1, 0), strict=True)) | {DRAFT_POSITION: place}
        return np.stack([columns[name] for name in names], axis=-1)

    def met(self) -> tuple[Integers, Integers]:
        """Rows and columns of the tokens up to and including each draft's first mismatch."""
        place = np.arange(self.max_draft)
        rows, columns = np.nonzero((place <= self.matched[:, None]) & (place < self.judged[:, None]))
        return rows, columns


def read_offsets(file: TraceFile) -> Offsets:
    """All offsets of a trace; one without any is an error."""
    conversations = Conversations()
    parts = [_of_request(number, conversations.index(trace), trace) for number, trace in enumerate(file)]
    if not sum(map(len, parts)):
        raise SkitError(f"the trace {file.path} is empty: record prompts with 'skit record'")
    return Offsets(
        **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Offsets)}
    )


def _of_request(number: int, conversation: int, trace: RequestTrace) -> Offsets:
    count, max_draft = trace.drafted.shape
    known = len(trace.output_ids) + len(trace.continuation)
    answer = np.array([*trace.output_ids, *trace.continuation, *[NOTHING] * max_draft])
    said = np.lib.stride_tricks.sliding_window_view(answer, max_draft)[:count]
    place = np.arange(count)
    return Offsets(
        conversation=np.full(count, conversation),
        request=np.full(count, number),
        context=len(trace.prompt_ids) + place,
        remaining=count - place,
        matched=(trace.drafted == said).cumprod(axis=1).sum(axis=1),
        judged=np.minimum(known - place, max_draft),
        statistics=trace.statistics,
    )
