"""Attention masks: additive, 4-D, one row per request, for chains and for trees."""

from collections.abc import Sequence

import torch
from torch import Tensor

BAND = 64
"""Widest chain for which a mask is cut from a table instead of being built."""


class MaskBuilder:
    """Masks of one KV store: position i of a request sees its prefix, its ancestors and itself."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.blocked = torch.finfo(dtype).min
        self.capacity = capacity
        columns = torch.arange(2 * capacity + BAND, device=device)
        self._band = self._additive(columns <= capacity + torch.arange(BAND, device=device)[:, None])

    def chains(self, starts: Sequence[int], width: int, length: int) -> Tensor:
        """Mask [rows, 1, width, length] of requests whose new tokens follow each other from `starts` on."""
        if width <= BAND:
            rows = [self._band[..., :width, self.capacity - start : self.capacity - start + length] for start in starts]
        else:
            new = torch.arange(width, device=self.device)[:, None]
            columns = torch.arange(length, device=self.device)
            rows = [self._additive(columns <= start + new) for start in starts]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def restrict(self, mask: Tensor, prefix: int, paths: Sequence[Sequence[int]]) -> None:
        """Let row i of a mask [width, length] see the prefix and, of the nodes after it, only `paths[i]`."""
        mask[: len(paths), prefix:] = self.blocked
        rows = [row for row, path in enumerate(paths) for _ in path]
        seen = torch.tensor([rows, [node for path in paths for node in path]], device=self.device)
        mask[seen[0], prefix + seen[1]] = 0

    def _additive(self, allowed: Tensor) -> Tensor:
        """[1, 1, width, length]: 0 where attention is allowed, the lowest number where it is not."""
        mask = torch.zeros((1, 1, *allowed.shape), dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~allowed, self.blocked)
