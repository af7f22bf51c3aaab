"""Preallocated KV memory of all layers and slots, and the windows that a forward sees of it."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class LayerKV(NamedTuple):
    """The size of one token's KV in one layer: `heads` keys of `key_dim` numbers, and as many values of `value_dim`."""

    heads: int
    key_dim: int
    value_dim: int


class KVStore:
    """Keys and values of every slot, which are zero at the start: for every layer two [slots, heads, capacity, dim].

    Those of one size lie side by side in one of `blocks`, [tensors, slots, heads, capacity, dim], so that a token moves
    in all layers at once.
    """

    def __init__(
        self, layers: Sequence[LayerKV], slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        sizes = [(layer.heads, dim) for layer in layers for dim in (layer.key_dim, layer.value_dim)]
        blocks = {
            (heads, dim): torch.zeros((count, slots, heads, capacity, dim), dtype=dtype, device=device)
            for (heads, dim), count in Counter(sizes).items()
        }
        parts = {size: iter(block) for size, block in blocks.items()}
        tensors = [next(parts[size]) for size in sizes]
        self.device, self.blocks = device, list(blocks.values())
        self.layers = list(zip(tensors[::2], tensors[1::2], strict=True))

    @staticmethod
    def token_bytes(layers: Sequence[LayerKV], dtype: torch.dtype) -> int:
        """Return the bytes of one token's KV."""
        return sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize

    def move(self, slot: int, source: list[int], start: int) -> None:
        """Move the positions `source` of a slot to `start`, `start + 1`, ... in every layer."""
        for block in self.blocks:
            tokens = block[:, slot]
            tokens[..., start : start + len(source), :] = tokens[..., source, :]


class KVWindow:
    """The part of a store that one forward writes and attends to.

    Row b writes its `width` new tokens at `starts[b]` of slot `slots[b]` and attends to positions below `length`.
    """

    def __init__(self, store: KVStore, slots: list[int], starts: list[int], width: int) -> None:
        self.store = store
        self.length = max(starts) + width
        self.width, self.slot_of_row = width, slots
        self.first, self.start = slots[0], starts[0]
        self.adjacent = slots == list(range(self.first, self.first + len(slots)))
        self.level = min(starts) == max(starts)
        self.rows = slice(self.first, self.first + len(slots))
        if not (self.adjacent and self.level):
            device = store.device
            self.slots = torch.tensor(slots, device=device)
            self.positions = torch.from_numpy(np.add.outer(starts, np.arange(width))).to(device)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store one layer's new keys and values, each [rows, heads, width, dim]."""
        for stored, computed in zip(self.store.layers[layer], (keys, values), strict=True):
            new = computed.to(stored.device)  # layers of a spread model lie on several devices, their KV on one
            if self.adjacent and self.level:
                stored[self.rows, :, self.start : self.start + self.width] = new
            else:
                stored[self.slots[:, None], :, self.positions] = new.permute(0, 2, 1, 3)

    def read(self, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return one layer's keys and values, each [rows, heads, length, dim]; views if slots are adjacent."""
        rows = self.rows if self.adjacent else self.slots
        keys, values = (stored[:, :, : self.length][rows].to(device) for stored in self.store.layers[layer])
        return keys, values
