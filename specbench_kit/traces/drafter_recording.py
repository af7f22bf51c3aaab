"""Records the drafts of any drafter: at every offset of an answer it drafts as in a live round that begins there."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.models.runner import Append, Runner
from specbench_kit.traces.recording import RecordedDrafts, TraceRecorder
from specbench_kit.traces.trace import NO_TOKEN, STATISTICS

TOKENS_AT_ONCE = 64
"""Tokens of a text whose hidden states are computed in one forward, which bounds the memory for their logits."""
NO_LIMIT = 1 << 40


class DrafterTraceRecorder(TraceRecorder):
    """Turns finished greedy requests into traces, with one drafter that lives as long as the recorder.

    The drafter goes through every answer token by token, as if each round committed one token. What a model or head
    keeps in KV, and what a look-up has read of a request, follows from the text before an offset alone, so that it
    drafts the same in a live run whatever its earlier rounds were. A look-up that also searches earlier answers finds
    those of the requests that were recorded before: pass requests in the order in which live runs decode them.

    `models` are those of the drafter by name, each with a slot for a text and a draft of `max_draft` tokens.
    """

    def __init__(self, target: Runner, drafting: Drafting, models: Mapping[str, Runner], max_draft: int) -> None:
        self._target = target
        self._max_draft = max_draft
        self._behind = max_draft + 1
        capacity = min((runner.capacity for runner in models.values()), default=NO_LIMIT)
        self._drafter = drafting.source(DrafterParts(models, Sampler(), ModelledClock(), False, capacity))
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
            # The first verification forwards the whole prompt, every later one the token that was committed last.
            verified = len(prompt) + offset
            new_states = None if states is None else states[verified - 1 if offset else 0 : verified]
            self._drafter.commit(draft, (), None, new_states)
        self._drafter.release(session)
        return RecordedDrafts(drafted, statistics, sources if any(sources) else [])

    def _statistics(self, tree: TokenTree) -> Sequence[float]:
        """Return the newest token's statistics in the order of a trace; 0 for those that the drafter does not have."""
        if self._capability >= Capability.STATISTICS:
            stats = tree.stats(tree.last)
            return [getattr(stats, name) for name in STATISTICS]
        probability = tree.probability(tree.last) if self._capability >= Capability.PROBABILITIES else 0.0
        return [*[0.0] * (len(STATISTICS) - 1), probability]

    def _states(self, text: Sequence[int]) -> Tensor | None:
        """Return the target's hidden states [tokens - 1, layers x width] of a text, if the drafter reads any.

        The last token of an answer is never verified, so that its state is not known.
        """
        if not self._layers:
            return None
        slot = self._target.acquire()
        parts = list[Tensor]()
        for first in range(0, len(text) - 1, TOKENS_AT_ONCE):
            tokens = text[first : min(first + TOKENS_AT_ONCE, len(text) - 1)]
            forward = self._target.forward([Append(slot, tokens, keep=len(tokens))], self._layers)
            parts.append(forward.states(0, self._layers).clone())
            self._target.commit(slot, range(len(tokens)))
        self._target.release(slot)
        return torch.cat(parts)
