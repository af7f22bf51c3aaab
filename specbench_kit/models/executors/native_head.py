"""Runs EAGLE heads on a CPU in one call per forward."""

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from specbench_kit.models.drafts.reduced import expand_logits, is_reduced
from specbench_kit.models.executors.base import Forward, Row, executors
from specbench_kit.models.executors.head import HeadStates
from specbench_kit.models.executors.native import NativeExecutor, NativeForward
from specbench_kit.models.executors.native_weights import computable, is_llama_like
from specbench_kit.models.heads.model import HeadModel


@executors.register("native-head")
class NativeHeadExecutor(NativeExecutor):
    """Runs EAGLE heads with the extension of `native`."""

    def __init__(self, model: HeadModel, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, None)
        self.reads = model.config.layers
        self.vocabulary = vocabulary
        self._tokens = model.tokens
        self._token_ids = model.tokens.tolist()
        self._whole = model.config.layer.vocab_size
        self.states = HeadStates(slots, capacity, self._width, torch.float32, self.device)

    @classmethod
    def refusal(cls, model: Any) -> str:
        computed = isinstance(model, HeadModel) and model.device.type == "cpu" and computable(model)
        return cls.missing() or ("" if computed else "runs EAGLE heads on a CPU")

    def add_states(self, slot: int, states: Tensor) -> None:
        told = states.float().contiguous()
        fused = self.states.append(slot, len(told))
        self._library.fuse(
            self._decoder, told.data_ptr(), len(told), fused.data_ptr(), torch.get_num_threads()
        )

    def forget(self, slot: int) -> None:
        self.states.forget(slot)

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        states = self.states.read(rows)
        outputs = self.states.outputs(rows[0]) if len(rows) == 1 else torch.empty_like(states)
        forward = self._forward(rows, layers, (states.data_ptr(), outputs.data_ptr()))
        if len(rows) > 1:
            self.states.store(rows, outputs)
        return ReducedForward(forward, self._token_ids, self._tokens, self._whole, self.vocabulary)

    def with_slots(self, slots: int, capacity: int) -> "NativeHeadExecutor":
        executor = super().with_slots(slots, capacity)
        assert isinstance(executor, NativeHeadExecutor)
        executor.states = HeadStates(slots, capacity, self._width, torch.float32, self.device)
        return executor

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        super().move(slot, sources, to)
        self.states.move(slot, sources, to)

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return int(super().kv_bytes(slots, capacity) + 2 * slots * capacity * self._width * 4)


class ReducedForward(Forward):
    """Builds logits of the target's whole vocabulary only when more than the likeliest token is
    needed.

    `token_ids` (a list) and `tokens` (a tensor) hold the target's token of each token in the drafter's vocabulary.
    """

    def __init__(
        self,
        forward: NativeForward,
        token_ids: Sequence[int],
        tokens: Tensor,
        whole: int,
        vocabulary: int | None,
    ) -> None:
        super().__init__(())
        self._forward = forward
        self._token_ids = token_ids
        self._tokens = tokens
        self._whole = whole
        self._vocabulary = vocabulary or whole
        self._cut = self._vocabulary < whole

    @cached_property
    def logits(self) -> Tensor:
        return expand_logits(self._forward.logits, self._tokens, self._whole)[:, : self._vocabulary]

    def __getitem__(self, row: int) -> Tensor:
        first = sum(self._forward.counts[:row])
        return self.logits[first : first + self._forward.counts[row]]

    def argmax(self) -> list[list[int]]:
        if self._cut:
            best = iter(self.logits.argmax(-1).tolist())
            return [list(islice(best, count)) for count in self._forward.counts]
        rows = []
        for tokens in self._forward.argmax():
            token_ids = [self._token_ids[token] for token in tokens]
            rows.append(token_ids)
        return rows

    def mask(self, tokens: Sequence[int]) -> None:
        self.logits[:, list(tokens)] = self.logits.amin(-1, keepdim=True)
        self._cut = True


@executors.register("native-draft")
class NativeDraftExecutor(NativeExecutor):
    """Runs draft models of `skit train-draft` with the extension of `native`."""

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, None)
        self.vocabulary = vocabulary
        self._whole = model.lm_head.total
        self._tokens = model.lm_head.tokens
        self._token_ids = model.lm_head.tokens.tolist()

    @classmethod
    def refusal(cls, model: Any) -> str:
        computed = is_reduced(model) and model.device.type == "cpu" and is_llama_like(model)
        return cls.missing() or (
            "" if computed else "runs draft models of `skit train-draft` on a CPU"
        )

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        forward = self._forward(rows, layers, (None, None))
        return ReducedForward(forward, self._token_ids, self._tokens, self._whole, self.vocabulary)
