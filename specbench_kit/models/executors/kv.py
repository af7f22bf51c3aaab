"""Preallocated KV memory: one tensor for all layers and slots, and the windows a forward sees of it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVShape:
    """The size of one token's KV: `layers` x 2 x `heads` x `head_dim` numbers."""

    layers: int
    heads: int
    head_dim: int


class KVStore:
    """Keys and values of every slot, shaped [layers, 2, slots, heads, capacity, head_dim]; zero at the start."""

    def __init__(self, shape: KVShape, slots: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (shape.layers, 2, slots, shape.heads, capacity, shape.head_dim)
        self.data = torch.zeros(size, dtype=dtype, device=device)

    def move(self, slot: int, source: list[int], start: int) -> None:
        """Move the positions `source` of a slot to `start`, `start + 1`, ... in every layer."""
        slot_data = self.data[:, :, slot]
        slot_data[..., start : start + len(source), :] = slot_data[..., source, :]

    def read(self, slot: int, length: int) -> Tensor:
        """Return the KV of the first `length` positions, shaped [layers, 2, heads, length, head_dim]."""
        return self.data[:, :, slot, :, :length]


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
        self.device = store.data.device
        if not (self.adjacent and self.level):
            device = store.data.device
            self.slots = torch.tensor(slots, device=device)
            self.positions = torch.from_numpy(np.add.outer(starts, np.arange(width))).to(device)

    def write(self, layer: int, kv: Tensor) -> None:
        """Store new keys and values, shaped [2, rows, heads, width, head_dim], of one layer."""
        self.device, target = kv.device, self.store.data[layer]  # layers of a spread model lie on several devices
        kv = kv.to(target.device)
        if self.adjacent and self.level:
            target[:, self.rows, :, self.start : self.start + self.width] = kv
        else:
            target[:, self.slots[:, None], :, self.positions] = kv.permute(1, 3, 0, 2, 4)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of one layer, each [rows, heads, length, head_dim]; a view if slots are adjacent."""
        window = self.store.data[layer, ..., : self.length, :]
        rows = window[:, self.rows] if self.adjacent else window[:, self.slots]
        keys, values = rows.to(self.device).unbind(0)
        return keys, values
