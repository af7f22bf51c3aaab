"""A trace as flat arrays: one row per output offset, each of which a round can start at."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.predictors.base import DRAFT_POSITION
from specbench_kit.traces.chain_replay import correct_tokens
from specbench_kit.traces.trace import STATISTICS, RequestTrace, TraceFile

Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of all requests, in order, as arrays [n].

    `conversation` and `request` are indices. `context` is the number of tokens up to the offset, prompt included, and
    `remaining` the number of output tokens from the offset on. `matched` counts the leading drafted tokens that equal
    the target's, `judged` the drafted tokens whose counterpart in the target's answer is on record. `statistics` is
    [n, max_draft, 5], as in a trace. `drafted` counts the tokens that were drafted at most.
    """

    conversation: Integers
    request: Integers
    context: Integers
    remaining: Integers
    matched: Integers
    judged: Integers
    statistics: NDArray[np.float32]
    drafted: Integers

    def __len__(self) -> int:
        return len(self.matched)

    @property
    def max_draft(self) -> int:
        """Return the number of tokens that are drafted at every offset."""
        return int(self.statistics.shape[1])

    @property
    def first(self) -> Integers:
        """Return the row of each request's first offset."""
        return np.flatnonzero(np.diff(self.request, prepend=-1))

    def take(self, rows: Mask | Integers) -> Self:
        """Return some of the offsets; rounds can only be played on whole requests."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def cut(self, max_draft: int) -> Self:
        """Return the offsets as if at most `max_draft` tokens had been drafted at each."""
        matched = np.minimum(self.matched, max_draft)
        judged = np.minimum(self.judged, max_draft)
        drafted = np.minimum(self.drafted, max_draft)
        return replace(
            self,
            matched=matched,
            judged=judged,
            statistics=self.statistics[:, :max_draft],
            drafted=drafted,
        )

    def features(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Return the features of every drafted token, [n, max_draft, features]."""
        position = np.broadcast_to(
            np.arange(1, self.max_draft + 1, dtype=np.float32), self.statistics.shape[:2]
        )
        columns = dict(zip(STATISTICS, np.moveaxis(self.statistics, -1, 0), strict=True)) | {
            DRAFT_POSITION: position
        }
        return np.stack([columns[name] for name in names], axis=-1)

    def examined(self) -> tuple[Integers, Integers]:
        """Return rows and columns of the tokens that the target examines: up to each draft's first
        mismatch.
        """
        column = np.arange(self.max_draft)
        rows, columns = np.nonzero(
            (column <= self.matched[:, None]) & (column < self.judged[:, None])
        )
        return rows, columns


def read_offsets(file: TraceFile) -> Offsets:
    """Return all offsets of a trace; raise SkitError if it has none."""
    dialogues = Dialogues()
    parts = []
    for number, trace in enumerate(file):
        dialogue = dialogues.index(trace.request_id, trace.prompt_ids, trace.output_ids)
        parts.append(_request_offsets(number, dialogue, trace))
    if not sum(map(len, parts)):
        raise SkitError(f"the trace {file.path} is empty: record prompts with 'skit record'")
    names = [field.name for field in fields(Offsets)]
    return Offsets(**{name: np.concatenate(list(map(attrgetter(name), parts))) for name in names})


def _request_offsets(number: int, conversation: int, trace: RequestTrace) -> Offsets:
    count = len(trace.output_ids)
    answer_length = len(trace.output_ids) + len(trace.continuation)
    offset = np.arange(count)
    drafted = trace.draft_lengths()
    return Offsets(
        conversation=np.full(count, conversation),
        request=np.full(count, number),
        context=len(trace.prompt_ids) + offset,
        remaining=count - offset,
        matched=correct_tokens(trace).cumprod(axis=1).sum(axis=1),
        judged=np.minimum(answer_length - offset, drafted),
        statistics=trace.statistics,
        drafted=drafted,
    )
