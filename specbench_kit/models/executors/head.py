"""Feature heads behind the door of all executors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from specbench_kit.models.executors.base import Row, executors
from specbench_kit.models.executors.kv import KVShape
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor
from specbench_kit.models.heads.model import HeadModel, attend

HIDDEN_LOGIT = 10.0
"""What tokens outside the draft vocabulary lie below the least likely one: minus infinity would spoil statistics."""


@executors.register("head")
class HeadExecutor(PaddedExecutor):
    """A token's row reads what the target made of the token before it, where that was told, else the row before it.

    A slot's first row is for the second token of a text, as there is nothing before the first. Rows whose states were
    not told need the row before them to be there already, from an earlier forward.
    """

    def __init__(self, model: HeadModel, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.model = model
        self._tokens = model.tokens
        super().__init__(model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        return isinstance(model, HeadModel)

    @property
    def kv_shape(self) -> KVShape:
        attention = self.model.layers[0].self_attn
        return KVShape(1, attention.kv_heads, attention.head_dim)

    def tell(self, slot: int, states: Tensor) -> None:
        """What the target made of further tokens of a slot's text, [tokens, 3 x width], in the order of the text."""
        first = self.told[slot]
        self._states[slot, 0, first : first + len(states)] = self.model.fc(states.to(self._dtype))
        self.told[slot] = first + len(states)

    def forget(self, slot: int) -> None:
        """A slot's next text is another one."""
        self.told[slot] = 0

    def compute(self, batch: ForwardInput) -> Computed:
        model, layer = self.model, self.model.layers[0]
        read, residual = layer.enter(embedding(batch.tokens, model.embed_tokens.weight), self._read())
        queries, keys, values = layer.self_attn.project(read, model.rotary(read, batch.positions))
        batch.kv.write(0, torch.stack((keys, values)))
        keys, values = batch.kv.read(0)
        state = layer.leave(residual, attend(queries, keys, values, batch.mask))
        self._states[self._slots, 1, self._places] = state
        last = state[:, batch.first :]
        return Computed(self._over_all(model.lm_head(model.norm(last))), {})

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        super().move(slot, sources, to)
        self._states[slot, 1, to : to + len(sources)] = self._states[slot, 1, list(sources)]

    def kv_bytes(self, slots: int, capacity: int) -> int:
        states = 2 * self._states.shape[-1] * self._states.dtype.itemsize
        return super().kv_bytes(slots, capacity) + slots * capacity * states

    def _make_room(self, slots: int, capacity: int) -> None:
        super()._make_room(slots, capacity)
        size = slots, 2, self.store.data.shape[-2], self.model.config.layer.hidden_size
        self._states = torch.zeros(size, dtype=self._dtype, device=self.device)
        """By slot what the target made of every token of the text, and what every row gave."""
        self.told = [0] * slots
        """Tokens of each slot's text whose states are there."""

    def _batch(self, rows: Sequence[Row], layers: Sequence[int]) -> ForwardInput:
        batch = super()._batch(rows, layers)
        sources = np.zeros((2, len(rows), batch.tokens.shape[1]), np.int64)
        for index, row in enumerate(rows):
            for place in range(len(row.tokens)):
                sources[:, index, place] = self._source(row, place)
        self._kinds, self._sources = torch.from_numpy(sources).to(self.device).unbind()
        self._slots = torch.tensor([row.slot for row in rows], device=self.device)[:, None]
        starts = torch.tensor([row.start for row in rows], device=self.device)[:, None]
        self._places = starts + torch.arange(batch.tokens.shape[1], device=self.device)
        return batch

    def _source(self, row: Row, place: int) -> tuple[int, int]:
        """Whether what a token reads is the target's or a row's, and where it lies."""
        path = None if row.paths is None else row.paths[place]
        position = row.start + place if path is None else row.prefix + len(path) - 1
        if position < self.told[row.slot]:
            return 0, position
        before = row.prefix + path[-2] if path is not None and len(path) > 1 else position - 1
        return 1, before

    def _read(self) -> Tensor:
        return self._states[self._slots, self._kinds, self._sources]

    def _over_all(self, logits: Tensor) -> Tensor:
        """Logits of the target's tokens."""
        whole = (logits.amin(-1, keepdim=True) - HIDDEN_LOGIT).repeat(1, 1, self.model.config.layer.vocab_size)
        return whole.index_copy_(-1, self._tokens, logits)
