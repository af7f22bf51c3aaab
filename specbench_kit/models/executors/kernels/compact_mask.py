"""Which keys new tokens attend to, by a few numbers for each instead of a table of all keys."""

from typing import NamedTuple

import torch
from torch import Tensor


class CompactMask(NamedTuple):
    """The keys that new tokens of some rows attend to, all of it on their device.

    A token attends to the keys up to its number in `last` [rows, width], itself included. Nodes of
    trees attend also to their ancestors: to key `prefixes` [rows, 1] + i where entry i of their
    `nodes` [rows, width, nodes] is 1. `keys` [length] are the numbers of all keys that there may be.

    The KV of the tokens themselves lies in `cells` [rows, width]; that of padding in cell `trash`,
    which no other token attends to. No token of a row attends to keys behind the last of its cells.
    """

    keys: Tensor
    cells: Tensor
    trash: int
    last: Tensor
    prefixes: Tensor | None = None
    nodes: Tensor | None = None

    def additive(self, dtype: torch.dtype) -> Tensor:
        """Return the table [rows, 1, width, length] that is added to the products of queries and
        keys.
        """
        return additive(self.keys, self.last, self.prefixes, self.nodes, dtype)


def additive(
    keys: Tensor,
    last: Tensor,
    prefixes: Tensor | None,
    nodes: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return the table of a mask; see `CompactMask`."""
    allowed = keys <= last[..., None]
    if prefixes is not None and nodes is not None:
        _, width, count = nodes.shape
        node = keys - prefixes
        places = node.clamp(0, count - 1)[:, None].expand(-1, width, -1)
        is_node = (node >= 0) & (node < count)
        allowed = allowed | (nodes.gather(2, places).bool() & is_node[:, None])
    table = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return table.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
