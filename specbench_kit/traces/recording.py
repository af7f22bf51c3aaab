"""Records a trace: the target's greedy answer and, at every offset, the drafter's greedy continuation."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.runner import Append, Runner
from specbench_kit.traces.trace import STATISTICS, RequestTrace


class RecordedDrafts(NamedTuple):
    """The columns `drafted`, `statistics` and `sources` of a `RequestTrace`."""

    drafted: NDArray[np.int32]
    statistics: NDArray[np.float32]
    sources: list[str]


class TraceRecorder:
    """Turns a finished greedy request into a trace; `draft` has one slot with room for `slot_length` tokens.

    At least `behind` tokens of the target's text behind an answer are recorded.
    """

    def __init__(self, target: Runner, draft: Runner, max_draft: int, behind: int = 0) -> None:
        self._target = target
        self._draft = draft
        self._max_draft = max_draft
        self._behind = max(behind, max_draft + 1)

    def trace(self, record: RequestRecord, continuation: Sequence[int] = ()) -> RequestTrace:
        """Return the trace of one request that the target has answered.

        `continuation` is what is known already of the target's text behind the answer.
        """
        return RequestTrace(
            record.request_id,
            record.category,
            record.prompt_ids,
            record.output_ids,
            record.finish_reason,
            self._continue_answer(record.prompt_ids + record.output_ids, continuation),
            *self._draft_from_all_offsets(record),
        )

    def _draft_from_all_offsets(self, record: RequestRecord) -> RecordedDrafts:
        """Return drafted tokens [offsets, max_draft] and their statistics [offsets, max_draft, 5]."""
        prompt_ids = record.prompt_ids
        output_ids = record.output_ids
        slot = self._draft.acquire()
        if len(prompt_ids) > 1:
            self._draft.forward([Append(slot, prompt_ids[:-1])])
            self._draft.commit(slot, range(len(prompt_ids) - 1))
        offsets = len(output_ids)
        drafted = np.empty((offsets, self._max_draft), np.int32)
        statistics = np.empty((offsets, self._max_draft, len(STATISTICS)), np.float32)
        # All offsets at once: each draft is a branch of one tree whose trunk are the request's own tokens.
        trunk = [prompt_ids[-1], *output_ids[:-1]]
        drafted[:, 0], statistics[:, 0] = self._next(slot, trunk, list(range(-1, offsets - 1)))
        # A draft that begins as the answer does stays on the trunk: it goes on as the draft of the next offset.
        on_trunk = drafted[:-1, 0] == output_ids[:-1]
        branches = [offset for offset in range(offsets) if offset == offsets - 1 or not on_trunk[offset]]
        parents = branches
        for step in range(1, self._max_draft):
            tokens: list[int] = drafted[branches, step - 1].tolist()
            drafted[branches, step], statistics[branches, step] = self._next(slot, tokens, parents)
            first = offsets + (step - 1) * len(branches)
            parents = list(range(first, first + len(branches)))
        self._draft.release(slot)
        for offset in np.flatnonzero(on_trunk)[::-1]:
            drafted[offset, 1:], statistics[offset, 1:] = drafted[offset + 1, :-1], statistics[offset + 1, :-1]
        return RecordedDrafts(drafted, statistics, [])

    def _next(
        self, slot: int, tokens: Sequence[int], parents: list[int]
    ) -> tuple[list[int], list[tuple[float, float, float, float, float]]]:
        """Forward nodes; return the likeliest token after each, with its statistics."""
        logits = self._draft.forward([Append(slot, tokens, parents, keep=len(tokens))])
        best = logits.argmax()[0]
        forward = DraftForward(logits, Sampler(), likeliest=best)
        return best, [astuple(forward.stats(row, token)) for row, token in enumerate(best)]

    def _continue_answer(self, prefix: Sequence[int], known: Sequence[int]) -> list[int]:
        """Return what the target says next, as far as a draft can reach beyond the answer; `known` is its beginning."""
        wanted = min(self._behind, self._target.capacity - len(prefix))
        continuation = list(known)
        if len(continuation) < wanted:
            slot = self._target.acquire()
            tokens = [*prefix, *known]
            while len(continuation) < wanted:
                best = self._target.forward([Append(slot, tokens)]).argmax()[0][0]
                self._target.commit(slot, range(len(tokens)))
                continuation.append(best)
                tokens = [best]
            self._target.release(slot)
        return continuation[: self._behind]


def slot_length(prompt: int, output: int, max_draft: int) -> int:
    """Return the tokens that the recorder's draft slot holds for a request of that size."""
    return prompt + output * (max_draft + 1)
