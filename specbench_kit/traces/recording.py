"""Records a trace: the target's greedy answer and, at every offset, the greedy continuation of the
draft model.

Any other drafter may take the draft model's place, and the text can be removed from a trace that
others may read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting
from specbench_kit.decoding.records import UNLIMITED, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.models.runner import Append, Runner
from specbench_kit.traces.chain_replay import correct_tokens
from specbench_kit.traces.outcome_traces import ANY_TOKEN
from specbench_kit.traces.trace import NO_TOKEN, STATISTICS, RequestTrace


class RecordedDrafts(NamedTuple):
    """The columns `drafted`, `statistics` and `sources` of a `RequestTrace`."""

    drafted: NDArray[np.int32]
    statistics: NDArray[np.float32]
    sources: list[str]


class TraceRecorder:
    """Turns a finished greedy request into a trace; `draft` has one slot with room for
    `slot_length` tokens.

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
        """Return drafted tokens [offsets, max_draft] and their statistics [offsets, max_draft,
        5].
        """
        prompt_ids = record.prompt_ids
        output_ids = record.output_ids
        slot = self._draft.acquire()
        if len(prompt_ids) > 1:
            self._draft.forward([Append(slot, prompt_ids[:-1])])
            self._draft.commit(slot, range(len(prompt_ids) - 1))
        offsets = len(output_ids)
        drafted = np.empty((offsets, self._max_draft), np.int32)
        statistics = np.empty((offsets, self._max_draft, len(STATISTICS)), np.float32)
        # All offsets at once: each draft is a branch of one tree whose trunk are the request's own
        # tokens.
        trunk = [prompt_ids[-1], *output_ids[:-1]]
        drafted[:, 0], statistics[:, 0] = self._next(slot, trunk, list(range(-1, offsets - 1)))
        # A draft that begins as the answer does stays on the trunk: it goes on as the draft of the
        # next offset.
        on_trunk = drafted[:-1, 0] == output_ids[:-1]
        branches = [
            offset for offset in range(offsets) if offset == offsets - 1 or not on_trunk[offset]
        ]
        parents = branches
        for step in range(1, self._max_draft):
            tokens: list[int] = drafted[branches, step - 1].tolist()
            drafted[branches, step], statistics[branches, step] = self._next(slot, tokens, parents)
            first = offsets + (step - 1) * len(branches)
            parents = list(range(first, first + len(branches)))
        self._draft.release(slot)
        for offset in np.flatnonzero(on_trunk)[::-1]:
            drafted[offset, 1:], statistics[offset, 1:] = (
                drafted[offset + 1, :-1],
                statistics[offset + 1, :-1],
            )
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
        """Return what the target says next, as far as a draft can reach beyond the answer; `known`
        is its beginning.
        """
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


TOKENS_AT_ONCE = 64
"""Tokens of a text whose hidden states are computed in one forward, which bounds the memory for
their logits.
"""


class DrafterTraceRecorder(TraceRecorder):
    """Turns finished greedy requests into traces, with one drafter that lives as long as the
    recorder.

    The drafter goes through every answer token by token, as if each round committed one token. What
    a model or head keeps in KV, and what a look-up has read of a request, follows from the text
    before an offset alone, so that it drafts the same in a live run whatever its earlier rounds
    were. A look-up that also searches earlier answers finds those of the requests that were
    recorded before: pass requests in the order in which live runs decode them.

    `models` are those of the drafter by name, each with a slot for a text and a draft of `max_draft` tokens.
    """

    def __init__(
        self, target: Runner, drafting: Drafting, models: Mapping[str, Runner], max_draft: int
    ) -> None:
        self._target = target
        self._max_draft = max_draft
        self._behind = max_draft + 1
        capacity = min((runner.capacity for runner in models.values()), default=UNLIMITED)
        self._drafter = drafting.source(
            DrafterParts(models, Sampler(), ModelledClock(), False, capacity)
        )
        self._layers = drafting.layers(models)
        self._capability = drafting.capability

    @torch.inference_mode()
    def _draft_from_all_offsets(self, record: RequestRecord) -> RecordedDrafts:
        prompt = record.prompt_ids
        output = record.output_ids
        shape = len(output), self._max_draft
        drafted = np.full(shape, NO_TOKEN, np.int32)
        statistics = np.zeros((*shape, len(STATISTICS)), np.float32)
        sources = list[str]()
        states = self._states([*prompt, *output])
        request = Request(record.request_id, record.category, tuple(prompt), len(output))
        session = Session(request, RequestRandom(0, request.id), frozenset(), 0.0, record)
        for offset, token in enumerate(output):
            (draft,) = self._drafter.begin([session])
            while draft.tree.last < self._max_draft and self._drafter.extend([draft]):
                statistics[offset, draft.tree.last - 1] = self._statistics(draft.tree)
            drafted[offset, : draft.tree.last] = draft.tree.tokens[1:]
            sources.append(draft.tree.drafter)
            session.tokens.append(token)
            # The first verification forwards the whole prompt, every later one the token that was
            # committed last.
            verified = len(prompt) + offset
            new_states = (
                None if states is None else states[verified - 1 if offset else 0 : verified]
            )
            self._drafter.commit(draft, (), None, new_states)
        self._drafter.release(session)
        return RecordedDrafts(drafted, statistics, sources if any(sources) else [])

    def _statistics(self, tree: TokenTree) -> Sequence[float]:
        """Return the newest token's statistics in the order of a trace; 0 for those that the
        drafter does not have.
        """
        if self._capability >= Capability.STATISTICS:
            stats = tree.stats(tree.last)
            return [getattr(stats, name) for name in STATISTICS]
        probability = (
            tree.probability(tree.last) if self._capability >= Capability.PROBABILITIES else 0.0
        )
        return [*[0.0] * (len(STATISTICS) - 1), probability]

    def _states(self, text: Sequence[int]) -> Tensor | None:
        """Return the target's hidden states [tokens - 1, layers x width] of a text, if the drafter
        reads any.

        The last token of an answer is never verified, so that its state is not known.
        """
        if not self._layers:
            return None
        slot = self._target.acquire()
        parts = list[Tensor]()
        for first in range(0, len(text) - 1, TOKENS_AT_ONCE):
            tokens = text[first : min(first + TOKENS_AT_ONCE, len(text) - 1)]
            row = Append.with_states(self._target, slot, tokens)
            forward = self._target.forward([row], self._layers)
            parts.append(forward.states(0, self._layers).clone())
            self._target.commit(slot, range(len(tokens)))
        self._target.release(slot)
        return torch.cat(parts)


class Redactor:
    """Replaces the token ids of requests, which come in order.

    What stays is the number of tokens, the statistics of the drafted ones, which of them are right,
    and which requests are turns of one conversation.
    """

    def __init__(self) -> None:
        self._dialogues = Dialogues()

    def redact(self, trace: RequestTrace) -> RequestTrace:
        """Return the request with ids that stand for any token."""
        # Prompts of one dialogue consist of one token, by which its turns are recognised.
        dialogue = (
            ANY_TOKEN
            + 1
            + self._dialogues.index(trace.request_id, trace.prompt_ids, trace.output_ids)
        )
        return replace(
            trace,
            prompt_ids=[dialogue] * len(trace.prompt_ids),
            output_ids=[ANY_TOKEN] * len(trace.output_ids),
            continuation=[ANY_TOKEN] * len(trace.continuation),
            drafted=np.where(correct_tokens(trace), ANY_TOKEN, np.minimum(trace.drafted, 0)).astype(
                np.int32
            ),
        )
