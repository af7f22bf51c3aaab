"""The work between the matrix products of a layer by torch's operations; see `base`."""

from torch import Tensor
from torch.nn.functional import rms_norm, silu

from specbench_kit.models.executors.kernels.base import LayerKernels


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


def gate(gates: Tensor) -> Tensor:
    gated, up = gates.chunk(2, -1)
    return silu(gated) * up


TORCH = LayerKernels("torch", norm, add_norm, rotate, gate)
