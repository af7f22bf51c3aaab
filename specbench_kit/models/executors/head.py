"""An executor for EAGLE heads on any device, and the hidden states that they read, by slot and
position.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence

from specbench_kit.models.drafts.reduced import expand_logits
from specbench_kit.models.executors.base import Row, executors
from specbench_kit.models.executors.kv import BAND, KV, LayerKV
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor
from specbench_kit.models.executors.transformers import WindowCache
from specbench_kit.models.heads.model import HeadModel, attend


class HeadStates:
    """Stores the target's states and the head's own outputs.

    A head computes a token from the target's state of the token before it or, where the target has
    not verified that far, from its own output for the token before. A slot's first row belongs to
    the second token of a text, as nothing precedes the first. A row that reads the head's own
    output needs that output from an earlier forward.
    """

    def __init__(
        self, slots: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._table = torch.zeros((slots, 2, capacity, width), dtype=dtype, device=device)
        self._flat = self._table.flatten(0, 2)
        self._capacity = capacity
        self._lengths = [0] * slots

    @property
    def bytes(self) -> int:
        """Return the memory that the states take."""
        return self._table.nbytes

    def append(self, slot: int, count: int) -> Tensor:
        """Return the memory [tokens, width] for the target's states of the next tokens of a slot's
        text.
        """
        places = self._next_places(slot, count)
        return self._flat[places.start : places.stop]

    def store_given(self, counts: Sequence[tuple[int, int]], states: Tensor) -> None:
        """Store the target's states [tokens, width] of the next tokens of slots, so many of each,
        at once.
        """
        places = [place for slot, count in counts for place in self._next_places(slot, count)]
        if len(counts) == 1:
            self._flat[places[0] : places[-1] + 1] = states
        else:
            self._flat.index_copy_(0, torch.tensor(places, device=states.device), states)

    def forget(self, slot: int) -> None:
        """Drop the target's states of a slot, whose next text is a new one."""
        self._lengths[slot] = 0

    def read(self, rows: Sequence[Row]) -> Tensor:
        """Return the states [tokens, width] that the new tokens of all rows read."""
        sources = [source for row in rows for source in self.sources_of(row)]
        first = sources[0]
        return self._flat[first : first + 1] if len(sources) == 1 else self._flat[sources]

    def outputs(self, row: Row) -> Tensor:
        """Return the memory for the head's outputs of one row's tokens."""
        return self._table[row.slot, 1, row.start : row.start + len(row.tokens)]

    def store(self, rows: Sequence[Row], states: Tensor) -> None:
        """Store the head's outputs of all rows' tokens."""
        first = 0
        for row in rows:
            count = len(row.tokens)
            self.outputs(row)[:] = states[first : first + count]
            first += count

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        """Move the head's outputs as the executor moves its KV."""
        self._table[slot, 1, to : to + len(sources)] = self._table[slot, 1, list(sources)]

    @property
    def own(self) -> Tensor:
        """Return the memory [slots, capacity, width] of the head's own outputs."""
        return self._table[:, 1]

    def own_source(self, slots: Tensor, cells: Tensor) -> Tensor:
        """Return where the head's own outputs at these cells of these slots are, as `sources_of`
        does.
        """
        return (2 * slots + 1) * self._capacity + cells

    def at(self, sources: Tensor) -> Tensor:
        """Return the states [..., width] at places [...] that `sources_of` names."""
        return self._flat[sources]

    def _next_places(self, slot: int, count: int) -> range:
        first = 2 * slot * self._capacity + self._lengths[slot]
        self._lengths[slot] += count
        return range(first, first + count)

    def sources_of(self, row: Row) -> Iterator[int]:
        """Return where the state that each new token of a row reads is."""
        length = self._lengths[row.slot]
        for index, path in enumerate(row.paths() or repeat(None, len(row.tokens))):
            position = row.start + index if path is None else row.prefix + len(path) - 1
            before = row.prefix + path[-2] if path is not None and len(path) > 1 else position - 1
            # The flat table holds, for each slot, the target's states and after them the head's own
            # outputs.
            verified = position < length
            yield (2 * row.slot + (not verified)) * self._capacity + (
                position if verified else before
            )


@runtime_checkable
class ReadsStates(Protocol):
    """An executor of an EAGLE head, which is given the target's hidden states of a text."""

    reads: tuple[int, ...]
    """The layers of the target whose hidden states the head reads."""

    def add_states(self, slot: int, states: Tensor) -> None:
        """Append the target's hidden states [tokens, layers x width] of the next tokens of a slot's
        text.
        """

    def forget(self, slot: int) -> None:
        """Drop the states of a slot, whose next text is a new one."""


def outputs_of(
    model: HeadModel, tokens: Tensor, places: Tensor, mask: Tensor, kv: KV, states: Tensor
) -> Tensor:
    """Return a head's outputs [rows, width, hidden] for tokens [rows, width] after states [rows,
    width, hidden].
    """
    layer = model.layer
    read, residual = layer.enter(embedding(tokens, model.embed_tokens.weight), states)
    queries, new_keys, new_values = layer.self_attn.project(read, model.rotary_emb(read, places))
    keys, values = kv.update(new_keys, new_values, 0)
    return layer.leave(residual, attend(queries, keys, values, mask))


def logits_of(model: HeadModel, tokens: Tensor, outputs: Tensor) -> Tensor:
    """Return logits [..., vocabulary] of the target's whole vocabulary, of which a head can draft
    `tokens`.
    """
    return expand_logits(model.lm_head(model.norm(outputs)), tokens, model.config.layer.vocab_size)


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
        counts = [len(row.tokens) for row in self._rows]
        states = pad_sequence(list(self.states.read(self._rows).split(counts)), batch_first=True)
        output = outputs_of(
            self.model, batch.tokens, batch.positions, batch.mask, WindowCache(batch.kv), states
        )
        self.states.store(
            self._rows, torch.cat([row[:count] for row, count in zip(output, counts, strict=True)])
        )
        return Computed(logits_of(self.model, self._tokens, output[:, batch.first :]), {})

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        super().move(slot, sources, to)
        self.states.move(slot, sources, to)

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return (
            super().kv_bytes(slots, capacity)
            + 2 * slots * (capacity + BAND) * self.model.fc.out_features * 4
        )

    def _allocate(self, slots: int, capacity: int) -> None:
        super()._allocate(slots, capacity)
        self.states = HeadStates(
            slots, capacity + BAND, self.model.fc.out_features, self._dtype, self.device
        )

    def _batch(self, rows: Sequence[Row], layers: Sequence[int]) -> ForwardInput:
        self._rows = rows
        return super()._batch(rows, layers)
