"""Executors on torch, with rows padded to one width, KV in one tensor and explicit 4-D masks."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from specbench_kit.models.executors.base import Executor, Forward, Padding, Row
from specbench_kit.models.executors.kv import BAND, KVStore, KVWindow, LayerKV, MaskBuilder

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """One padded batch.

    `tokens` and `positions` are [rows, width]; `mask` is additive, [rows, 1, width, kv.length]; logits, and the hidden
    states of `layers`, are computed from column `first` on. With `is_chain` every token attends to all before it, and
    `mask` says nothing more. `key_positions` [rows, kv.length] is set for models with
    sliding windows, which need the distance of every key.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    kv: KVWindow
    first: int
    key_positions: Tensor | None
    layers: Sequence[int] = ()
    is_chain: bool = False


class Computed(NamedTuple):
    """The logits [rows, width - first, vocabulary] and, by layer, hidden states [rows, width -
    first, hidden].
    """

    logits: Tensor
    hidden: Mapping[int, Tensor]


class PaddedExecutor(Executor):
    """Splits rows into padded batches; a subclass computes one of them."""

    needs_key_positions = False

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, vocabulary)
        self._dtype: torch.dtype = model.dtype
        self._allocate(slots, capacity)

    def with_slots(self, slots: int, capacity: int) -> Executor:
        executor = copy(self)
        executor._allocate(slots, capacity)
        return executor

    def _allocate(self, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        # Rows of a batch are padded by less than BAND tokens, and the padding of a full slot is
        # written past its end.
        self.store = KVStore(self.kv_layers, slots, capacity + BAND, self._dtype, self.device)
        self.masks = MaskBuilder(capacity + BAND, self._dtype, self.device)
        self._key_positions = (
            np.zeros((slots, capacity + BAND), np.int64) if self.needs_key_positions else None
        )

    @property
    @abstractmethod
    def kv_layers(self) -> Sequence[LayerKV]:
        """Return the size of one token's KV in every layer."""

    @abstractmethod
    def compute(self, batch: ForwardInput) -> Computed:
        """Compute one batch: write the new tokens' KV through `batch.kv` and attend to positions
        below its length.
        """

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        if (
            not torch.is_inference_mode_enabled()
        ):  # entering it takes time, so a loop of many forwards enters it once
            with torch.inference_mode():
                return self.forward(rows, layers)
        parts: dict[int, Tensor] = {}
        padding: dict[int, Padding] = {}
        hidden: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
        for members in _groups(rows):
            group = [rows[member] for member in members]
            batch = self._batch(group, layers)
            computed = self.compute(batch)
            logits = computed.logits[..., : self.vocabulary]
            for index, (member, row) in enumerate(zip(members, group, strict=True)):
                end = len(row.tokens) - batch.first
                parts[member] = logits[index, end - row.keep : end]
                padding[member] = Padding(
                    len(group), index, batch.kv.width, batch.first, batch.kv.length
                )
                for layer in layers:
                    hidden[layer][member] = computed.hidden[layer][index, end - row.keep : end]
        states = {layer: in_order(parts_of_layer) for layer, parts_of_layer in hidden.items()}
        return Forward(in_order(parts), states, padding=in_order(padding))

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        self.store.move(slot, list(sources), to)
        if self._key_positions is not None:
            self._key_positions[slot, to : to + len(sources)] = self._key_positions[
                slot, list(sources)
            ]

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return slots * (capacity + BAND) * KVStore.token_bytes(self.kv_layers, self._dtype)

    def _batch(self, rows: Sequence[Row], layers: Sequence[int]) -> ForwardInput:
        """Pad rows to one width; every row is laid out as a chain, then the rows that are trees are
        corrected.
        """
        starts = [row.start for row in rows]
        window = KVWindow(
            self.store, [row.slot for row in rows], starts, max(len(row.tokens) for row in rows)
        )
        inputs = np.zeros((2, len(rows), window.width), np.int64)
        for index, row in enumerate(rows):
            inputs[0, index, : len(row.tokens)] = row.tokens
            inputs[1, index, : len(row.tokens)] = range(row.start, row.start + len(row.tokens))
        mask = self.masks.chains(starts, window.width, window.length)
        trees = [
            (index, row, paths)
            for index, row in enumerate(rows)
            if (paths := row.paths()) is not None
        ]
        mask = (
            mask.clone() if trees else mask
        )  # the mask of chains is a view of a table that all forwards share
        for index, row, paths in trees:
            self.masks.restrict(mask[index, 0], row.prefix, paths)
            inputs[1, index, : len(row.tokens)] = [row.prefix + len(path) - 1 for path in paths]
        first = min(len(row.tokens) - row.keep for row in rows)
        keys = self._keys(rows, inputs[1], window.length)
        tokens, positions = torch.from_numpy(inputs).to(self.device).unbind()
        return ForwardInput(
            tokens, positions, mask, window, first, keys, layers, is_chain=not trees
        )

    def _keys(
        self, rows: Sequence[Row], positions: np.ndarray[Any, Any], length: int
    ) -> Tensor | None:
        """Return the position of every key, which in a tree differs from where it is stored."""
        if self._key_positions is None:
            return None
        for row, new in zip(rows, positions, strict=True):
            self._key_positions[row.slot, row.start : row.start + len(row.tokens)] = new[
                : len(row.tokens)
            ]
        return torch.from_numpy(self._key_positions[[row.slot for row in rows], :length]).to(
            self.device
        )


def in_order(parts: Mapping[int, Found]) -> list[Found]:
    """Return what belongs to each row, in the order of the rows."""
    return [parts[row] for row in range(len(parts))]


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    """Group rows into padded batches: all short ones together, each long one (a prefill) alone.

    Rows are in the order of their slots, since adjacent slots are read without a copy.
    """
    if len(rows) == 1:
        return [[0]]
    short = sorted(
        (i for i, row in enumerate(rows) if len(row.tokens) < BAND), key=lambda i: rows[i].slot
    )
    return [
        *([short] if short else []),
        *([i] for i, row in enumerate(rows) if len(row.tokens) >= BAND),
    ]
