"""Attention masks: additive, 4-D, one row per request, for chains and for trees."""

from collections.abc import Sequence

import torch
from torch import Tensor

BAND = 64
"""Widest chain for which a mask is a view of a table instead of being built."""


class MaskBuilder:
    """Masks of one KV store: position i of a request sees its prefix, its ancestors and itself."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.blocked = torch.finfo(dtype).min
        self.capacity = capacity
        columns = torch.arange(capacity + BAND, device=device)
        self.band = self.additive(columns <= capacity + torch.arange(BAND, device=device)[:, None])
        self.columns = columns[:capacity]

    def additive(self, allowed: Tensor) -> Tensor:
        """0 where attention is allowed, the lowest number where it is not."""
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, self.blocked)

    def chain(self, start: int, width: int) -> Tensor:
        """Mask [1, 1, width, start + width] of one request whose new tokens follow each other."""
        if width <= BAND:
            return self.band[None, None, :width, self.capacity - start : self.capacity + width]
        new = torch.arange(start, start + width, device=self.device)
        return self.additive(self.columns[: start + width] <= new[:, None])[None, None]

    def ragged(self, starts: Sequence[int], width: int, length: int) -> Tensor:
        """Boolean mask [rows, width, length] of requests whose new tokens follow each other."""
        new = torch.tensor(starts, device=self.device)[:, None] + torch.arange(width, device=self.device)
        return self.columns[:length] <= new[..., None]


def ancestors(parents: Sequence[int]) -> list[list[int]]:
    """For each node its path from the top, itself included; a parent of -1 is the committed prefix."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths
