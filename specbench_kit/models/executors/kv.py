"""Preallocated KV memory of all layers and slots, and the windows and masks through which a forward
sees it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class LayerKV(NamedTuple):
    """The size of one token's KV in one layer: `heads` keys of `key_dim` numbers, and as many
    values of `value_dim`.
    """

    heads: int
    key_dim: int
    value_dim: int


class KV(Protocol):
    """Keeps the keys and values of new tokens, as a cache of transformers does."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Store [rows, heads, width, dim] of one layer; return all keys and values, [rows, heads,
        length, dim].
        """


class KVStore:
    """Keys and values of every slot, which are zero at the start: for every layer two [slots,
    heads, capacity, dim].

    Those of one size lie side by side in one of `blocks`, [tensors, slots, heads, capacity, dim],
    so that a token moves in all layers at once.
    """

    def __init__(
        self,
        layers: Sequence[LayerKV],
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        sizes = [(layer.heads, dim) for layer in layers for dim in (layer.key_dim, layer.value_dim)]
        blocks = {
            (heads, dim): torch.zeros(
                (count, slots, heads, capacity, dim), dtype=dtype, device=device
            )
            for (heads, dim), count in Counter(sizes).items()
        }
        parts = {size: iter(block) for size, block in blocks.items()}
        tensors = [next(parts[size]) for size in sizes]
        self.device = device
        self.blocks = list(blocks.values())
        self.layers = list(zip(tensors[::2], tensors[1::2], strict=True))

    @staticmethod
    def token_bytes(layers: Sequence[LayerKV], dtype: torch.dtype) -> int:
        """Return the bytes of one token's KV."""
        return (
            sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in layers)
            * dtype.itemsize
        )

    def move(self, slot: int, source: list[int], start: int) -> None:
        """Move the positions `source` of a slot to `start`, `start + 1`, ... in every layer."""
        for block in self.blocks:
            tokens = block[:, slot]
            tokens[..., start : start + len(source), :] = tokens[..., source, :]


class KVWindow:
    """The part of a store that one forward writes and attends to.

    Row b writes its `width` new tokens at `starts[b]` of slot `slots[b]` and attends to positions
    below `length`.
    """

    def __init__(self, store: KVStore, slots: list[int], starts: list[int], width: int) -> None:
        self.store = store
        self.length = max(starts) + width
        self.width = width
        self.slot_of_row = slots
        self.first = slots[0]
        self.start = starts[0]
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
            new = computed.to(
                stored.device
            )  # layers of a spread model lie on several devices, their KV on one
            if self.adjacent and self.level:
                stored[self.rows, :, self.start : self.start + self.width] = new
            else:
                stored[self.slots[:, None], :, self.positions] = new.permute(0, 2, 1, 3)

    def read(self, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return one layer's keys and values, each [rows, heads, length, dim]; views if slots are
        adjacent.
        """
        rows = self.rows if self.adjacent else self.slots
        keys, values = (
            stored[:, :, : self.length][rows].to(device) for stored in self.store.layers[layer]
        )
        return keys, values


BAND = 64
"""The widest chain whose mask is cut from a table; masks of wider ones are built."""


class MaskBuilder:
    """Builds the masks of one KV store: a token attends to its prefix, its ancestors and itself."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.blocked = torch.finfo(dtype).min
        self.capacity = capacity
        columns = torch.arange(2 * capacity + BAND, device=device)
        self._band = self._additive(
            columns <= capacity + torch.arange(BAND, device=device)[:, None]
        )

    def chains(self, starts: Sequence[int], width: int, length: int) -> Tensor:
        """Return the mask [rows, 1, width, length] of requests whose new tokens are chains from
        `starts` on.
        """
        if width <= BAND:
            rows = [
                self._band[..., :width, self.capacity - start : self.capacity - start + length]
                for start in starts
            ]
        else:
            new = torch.arange(width, device=self.device)[:, None]
            columns = torch.arange(length, device=self.device)
            rows = [self._additive(columns <= start + new) for start in starts]
        if len(rows) > 1:
            return torch.cat(rows)
        # A part of the table begins anywhere, and attention on a GPU reads a mask 16 bytes at a
        # time.
        return rows[0] if self.device.type == "cpu" else rows[0].clone()

    def restrict(self, mask: Tensor, prefix: int, paths: Sequence[Sequence[int]]) -> None:
        """Restrict row i of a mask [width, length] to the prefix and, of the nodes after it, to
        `paths[i]`.
        """
        mask[: len(paths), prefix:] = self.blocked
        rows = [row for row, path in enumerate(paths) for _ in path]
        cells = torch.tensor([rows, [node for path in paths for node in path]], device=self.device)
        mask[cells[0], prefix + cells[1]] = 0

    def _additive(self, allowed: Tensor) -> Tensor:
        """Return a mask [1, 1, width, length]: 0 where attention is allowed, the lowest number
        elsewhere.
        """
        mask = torch.zeros((1, 1, *allowed.shape), dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, self.blocked)
