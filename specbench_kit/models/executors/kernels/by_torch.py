"""The work between the matrix products of a layer by torch's operations; see `base`."""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from specbench_kit.models.executors.kernels.base import Attention, LayerKernels
from specbench_kit.models.executors.kernels.compact_mask import CompactMask


def norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(hidden, weight.shape, weight, epsilon)


def add_norm(
    hidden: Tensor, added: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    total = hidden + added
    return total, norm(total, weight, epsilon)


def rotate(
    projected: Tensor,
    cosines: Tensor,
    sines: Tensor,
    norms: Tensor | None,
    epsilon: float,
    heads: int,
    keys: Tensor | None,
    values: Tensor | None,
    slots: Tensor | None,
    cells: Tensor | None,
) -> tuple[Tensor, Tensor]:
    rows, width, all_heads, dim = projected.shape
    kv_heads = (all_heads - heads) // 2
    turned = projected[:, :, : heads + kv_heads]
    if norms is not None:
        turned = rms_norm(turned, (dim,), eps=epsilon) * norms
    turned = turned * cosines[:, :, None] + turned.roll(dim // 2, -1) * sines[:, :, None]
    new_keys = turned[:, :, heads:]
    if keys is not None and values is not None:
        keys[slots, :, cells] = new_keys
        values[slots, :, cells] = projected[:, :, heads + kv_heads :]
    queries = turned[:, :, :heads].view(rows, width, kv_heads, -1, dim)
    return (
        queries.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, dim),
        new_keys.transpose(1, 2),
    )


class MaskedAttention:
    """Torch's attention with a table [rows, 1, width, length] that is added to the products."""

    def __init__(self, table: Tensor, group: int) -> None:
        rows, _, self._width, length = table.shape
        # Heads that share keys stand one below the other as if they were further tokens, so that no
        # KV is copied.
        self._table = (
            table[:, :, None]
            .expand(rows, 1, group, self._width, length)
            .reshape(rows, 1, group * self._width, length)
        )

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        rows, kv_heads, _, dim = queries.shape
        found = scaled_dot_product_attention(
            queries, keys, values, attn_mask=self._table, scale=scale
        )
        by_token = found.view(rows, kv_heads, -1, self._width, dim).permute(0, 3, 1, 2, 4)
        return by_token.reshape(rows, self._width, -1)


def attention(mask: CompactMask, group: int, dtype: torch.dtype) -> Attention:
    return MaskedAttention(mask.additive(dtype), group)


def gate(gates: Tensor) -> Tensor:
    gated, up = gates.chunk(2, -1)
    return silu(gated) * up


TORCH = LayerKernels("torch", norm, add_norm, rotate, attention, gate)
