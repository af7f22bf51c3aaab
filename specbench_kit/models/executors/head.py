"""Feature heads behind the door of all executors."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence

from specbench_kit.models.executors.base import Row, executors
from specbench_kit.models.executors.head_states import HeadStates
from specbench_kit.models.executors.kv import KVShape
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor
from specbench_kit.models.heads.model import HeadModel, attend


@runtime_checkable
class ReadsStates(Protocol):
    """An executor of a head, which is told what the target made of a text."""

    reads: tuple[int, ...]
    """The layers of the target."""

    def tell(self, slot: int, states: Tensor) -> None:
        """What the target made of further tokens of a slot's text, [tokens, layers x width], in their order."""

    def forget(self, slot: int) -> None:
        """A slot's next text is another one."""


@executors.register("head")
class HeadExecutor(PaddedExecutor):
    """Any feature head on any device."""

    def __init__(self, model: HeadModel, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.model, self.reads = model, model.config.layers
        self._tokens = model.tokens
        super().__init__(model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        return isinstance(model, HeadModel)

    @property
    def kv_shape(self) -> KVShape:
        attention = self.model.layer.self_attn
        return KVShape(1, attention.kv_heads, attention.head_dim)

    def tell(self, slot: int, states: Tensor) -> None:
        self.states.tell(slot, self.model.fc(states.to(self._dtype)))

    def forget(self, slot: int) -> None:
        self.states.forget(slot)

    def compute(self, batch: ForwardInput) -> Computed:
        model, layer = self.model, self.model.layer
        counts = [len(row.tokens) for row in self._rows]
        given = pad_sequence(list(self.states.read(self._rows).split(counts)), batch_first=True)
        read, residual = layer.enter(embedding(batch.tokens, model.embed_tokens.weight), given)
        queries, keys, values = layer.self_attn.project(read, model.rotary_emb(read, batch.positions))
        batch.kv.write(0, torch.stack((keys, values)))
        keys, values = batch.kv.read(0)
        made = layer.leave(residual, attend(queries, keys, values, batch.mask))
        self.states.keep(self._rows, torch.cat([one[:count] for one, count in zip(made, counts, strict=True)]))
        logits = model.lm_head(model.norm(made[:, batch.first :]))
        return Computed(over_all(logits, self._tokens, model.config.layer.vocab_size), {})

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        super().move(slot, sources, to)
        self.states.move(slot, sources, to)

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return super().kv_bytes(slots, capacity) + 2 * slots * capacity * self.model.fc.out_features * 4

    def _make_room(self, slots: int, capacity: int) -> None:
        super()._make_room(slots, capacity)
        self.states = HeadStates(slots, capacity, self.model.fc.out_features, self._dtype, self.device)

    def _batch(self, rows: Sequence[Row], layers: Sequence[int]) -> ForwardInput:
        self._rows = rows
        return super()._batch(rows, layers)


def over_all(logits: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """Logits of all the target's tokens; those that a head cannot say are less likely than any that it can."""
    whole = (logits.amin(-1, keepdim=True) - 10.0).repeat(*[1] * (logits.dim() - 1), vocabulary)
    return whole.index_copy_(-1, tokens, logits)
