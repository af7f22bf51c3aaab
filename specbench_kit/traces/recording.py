"""Records a trace: the target's greedy answer and, at every offset, the drafter's greedy continuation."""

from collections.abc import Sequence
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
    """Turns a finished greedy request into a trace; `draft` has one slot with room for `slot_length` tokens."""

    def __init__(self, target: Runner, draft: Runner, max_draft: int) -> None:
        self._target, self._draft, self._max_draft = target, draft, max_draft

    def trace(self, record: RequestRecord) -> RequestTrace:
        """Return the trace of one request that the target has answered."""
        return RequestTrace(
            record.request_id,
            record.category,
            record.prompt_ids,
            record.output_ids,
            record.finish_reason,
            self._continue_answer(record.prompt_ids + record.output_ids),
            *self._draft_from_all_offsets(record),
        )

    def _draft_from_all_offsets(self, record: RequestRecord) -> RecordedDrafts:
        """Return drafted tokens [offsets, max_draft] and their statistics [offsets, max_draft, 5]."""
        prompt_ids, output_ids = record.prompt_ids, record.output_ids
        # All offsets at once: each draft is a branch of one tree whose trunk are the request's own tokens.
        slot = self._draft.acquire()
        if len(prompt_ids) > 1:
            self._draft.forward([Append(slot, prompt_ids[:-1])])
            self._draft.commit(slot, range(len(prompt_ids) - 1))
        offsets = len(output_ids)
        tokens, parents = [prompt_ids[-1], *output_ids[:-1]], list(range(-1, offsets - 1))
        drafted = np.empty((offsets, self._max_draft), np.int32)
        statistics = np.empty((offsets, self._max_draft, len(STATISTICS)), np.float32)
        for step in range(self._max_draft):
            logits = self._draft.forward([Append(slot, tokens, parents, keep=offsets)])
            parents = list(range(step * offsets, (step + 1) * offsets))
            tokens = logits.argmax()[0]
            drafted[:, step] = tokens
            statistics[:, step] = DraftForward(logits, Sampler()).table(tokens).cpu().numpy()
        self._draft.release(slot)
        return RecordedDrafts(drafted, statistics, [])

    def _continue_answer(self, prefix: Sequence[int]) -> list[int]:
        """Return what the target says next, as far as a draft can reach beyond the answer."""
        slot = self._target.acquire()
        continuation: list[int] = []
        tokens: Sequence[int] = prefix
        while len(continuation) <= self._max_draft and self._target.length(slot) + len(tokens) < self._target.capacity:
            best = self._target.forward([Append(slot, tokens)]).argmax()[0][0]
            self._target.commit(slot, range(len(tokens)))
            continuation.append(best)
            tokens = [best]
        self._target.release(slot)
        return continuation


def slot_length(prompt: int, output: int, max_draft: int) -> int:
    """Return the tokens that the recorder's draft slot holds for a request of that size."""
    return prompt + output * (max_draft + 1)
