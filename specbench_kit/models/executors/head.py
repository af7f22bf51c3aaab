"""An executor for EAGLE heads on any device."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence

from specbench_kit.models.drafts.reduced import expand_logits
from specbench_kit.models.executors.base import Row, executors
from specbench_kit.models.executors.head_states import HeadStates
from specbench_kit.models.executors.kv import LayerKV
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor
from specbench_kit.models.heads.model import HeadModel, attend


@runtime_checkable
class ReadsStates(Protocol):
    """An executor of an EAGLE head, which is given the target's hidden states of a text."""

    reads: tuple[int, ...]
    """The layers of the target whose hidden states the head reads."""

    def add_states(self, slot: int, states: Tensor) -> None:
        """Append the target's hidden states [tokens, layers x width] of the next tokens of a slot's text."""

    def forget(self, slot: int) -> None:
        """Drop the states of a slot, whose next text is a new one."""


@executors.register("head")
class HeadExecutor(PaddedExecutor):
    """Runs any EAGLE head on any device."""

    def __init__(self, model: HeadModel, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.model = model
        self.reads = model.config.layers
        self._tokens = model.tokens
        super().__init__(model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        return isinstance(model, HeadModel)

    @property
    def kv_layers(self) -> list[LayerKV]:
        attention = self.model.layer.self_attn
        return [LayerKV(attention.kv_heads, attention.head_dim, attention.head_dim)]

    def add_states(self, slot: int, states: Tensor) -> None:
        self.states.append(slot, len(states))[:] = self.model.fc(states.to(self._dtype))

    def forget(self, slot: int) -> None:
        self.states.forget(slot)

    def compute(self, batch: ForwardInput) -> Computed:
        model = self.model
        layer = self.model.layer
        counts = [len(row.tokens) for row in self._rows]
        states = pad_sequence(list(self.states.read(self._rows).split(counts)), batch_first=True)
        read, residual = layer.enter(embedding(batch.tokens, model.embed_tokens.weight), states)
        queries, keys, values = layer.self_attn.project(read, model.rotary_emb(read, batch.positions))
        batch.kv.write(0, keys, values)
        keys, values = batch.kv.read(0, keys.device)
        output = layer.leave(residual, attend(queries, keys, values, batch.mask))
        self.states.store(self._rows, torch.cat([row[:count] for row, count in zip(output, counts, strict=True)]))
        logits = model.lm_head(model.norm(output[:, batch.first :]))
        return Computed(expand_logits(logits, self._tokens, model.config.layer.vocab_size), {})

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        super().move(slot, sources, to)
        self.states.move(slot, sources, to)

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return super().kv_bytes(slots, capacity) + 2 * slots * capacity * self.model.fc.out_features * 4

    def _allocate(self, slots: int, capacity: int) -> None:
        super()._allocate(slots, capacity)
        self.states = HeadStates(slots, capacity, self.model.fc.out_features, self._dtype, self.device)

    def _batch(self, rows: Sequence[Row], layers: Sequence[int]) -> ForwardInput:
        self._rows = rows
        return super()._batch(rows, layers)
