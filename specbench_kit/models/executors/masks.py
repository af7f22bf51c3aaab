"""Attention masks: additive, 4-D, one row per request, for chains and for trees."""

from collections.abc import Sequence

import torch
from torch import Tensor

BAND = 64
"""The widest chain whose mask is cut from a table; masks of wider ones are built."""


class MaskBuilder:
    """Builds the masks of one KV store: a token attends to its prefix, its ancestors and itself."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.blocked = torch.finfo(dtype).min
        self.capacity = capacity
        columns = torch.arange(2 * capacity + BAND, device=device)
        self._band = self._additive(columns <= capacity + torch.arange(BAND, device=device)[:, None])

    def chains(self, starts: Sequence[int], width: int, length: int) -> Tensor:
        """Return the mask [rows, 1, width, length] of requests whose new tokens are chains from `starts` on."""
        if width <= BAND:
            rows = [self._band[..., :width, self.capacity - start : self.capacity - start + length] for start in starts]
        else:
            new = torch.arange(width, device=self.device)[:, None]
            columns = torch.arange(length, device=self.device)
            rows = [self._additive(columns <= start + new) for start in starts]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def restrict(self, mask: Tensor, prefix: int, paths: Sequence[Sequence[int]]) -> None:
        """Restrict row i of a mask [width, length] to the prefix and, of the nodes after it, to `paths[i]`."""
        mask[: len(paths), prefix:] = self.blocked
        rows = [row for row, path in enumerate(paths) for _ in path]
        cells = torch.tensor([rows, [node for path in paths for node in path]], device=self.device)
        mask[cells[0], prefix + cells[1]] = 0

    def _additive(self, allowed: Tensor) -> Tensor:
        """Return a mask [1, 1, width, length]: 0 where attention is allowed, the lowest number elsewhere."""
        mask = torch.zeros((1, 1, *allowed.shape), dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, self.blocked)
