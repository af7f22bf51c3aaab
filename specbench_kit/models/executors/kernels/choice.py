"""Which kernels a device gets: Triton's where they are there and agree with torch's operations."""

import logging
from functools import cache
from importlib.util import find_spec
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from specbench_kit.core.plain_text import first_line
from specbench_kit.models.executors.kernels.base import LayerKernels, LayerSizes
from specbench_kit.models.executors.kernels.by_torch import TORCH
from specbench_kit.models.executors.kernels.operators import FUSED

ROUNDINGS = 8
"""The largest accepted difference of two results; see `largest_difference`."""
_LOG = logging.getLogger(__name__)


class Choice(NamedTuple):
    """Kernels, and why they are not Triton's if they are torch's."""

    kernels: LayerKernels
    reason: str = ""


def missing() -> str:
    """Return what this installation lacks for Triton's kernels; empty if nothing."""
    return "" if find_spec("triton") else "Triton is not installed"


@cache
def choose(device: torch.device, dtype: torch.dtype, sizes: LayerSizes) -> Choice:
    """Return the kernels for layers of these sizes on a device.

    Those of Triton are compiled and tried first, on random numbers: where they fail, or differ from
    torch's operations by more than rounding, a warning says so and torch's are returned.
    """
    if device.type != "cuda":
        return Choice(TORCH, "the device is no GPU")
    if lack := missing():
        return Choice(TORCH, lack)
    try:
        difference = largest_difference(FUSED, device, dtype, sizes)
    except Exception as error:  # whatever a compiler or a card says
        reason = f"Triton's kernels fail: {first_line(error)}"
    else:
        if difference <= ROUNDINGS:
            return Choice(FUSED)
        reason = f"Triton's kernels differ from torch's operations by {difference:.3g} roundings"
    _LOG.warning("TORCH'S KERNELS ON %s: %s", device, reason)
    return Choice(TORCH, reason)


@torch.inference_mode()
def largest_difference(
    kernels: LayerKernels, device: torch.device, dtype: torch.dtype, sizes: LayerSizes
) -> float:
    """Return how far results are from those of torch's operations, on random numbers.

    The difference is in roundings: the data type's precision times the size of a number and the
    mean size of the result that it is of.
    """
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    rows, width, capacity = 2, 3, 8
    heads, kv_heads, dim = sizes.heads, sizes.kv_heads, sizes.head_dim
    hidden, added, weight = (numbers(rows, width, sizes.hidden) for _ in range(3))
    angles = torch.randn((rows, width, dim), generator=random)
    projected = numbers(rows, width, heads + 2 * kv_heads, dim)
    turns = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
    norms = numbers(heads + kv_heads, dim) if sizes.has_head_norms else None
    slots = torch.tensor([[2], [0]]).to(device)
    cells = torch.tensor([[5, 6, 7], [0, 1, 4]]).to(device)
    gates = numbers(rows, width, 2 * sizes.intermediate)

    def results(of: LayerKernels) -> list[Tensor]:
        room = (3, kv_heads, capacity, dim)
        keys, values = (torch.zeros(room, dtype=dtype).to(device) for _ in range(2))
        places = keys, values, slots, cells
        return [
            of.norm(hidden, weight[0, 0], 1e-6),
            *of.add_norm(hidden, added, weight[0, 0], 1e-6),
            *of.rotate(projected, *turns, norms, 1e-6, heads, *places),
            keys,
            values,
            of.gate(gates),
        ]

    pairs = zip(results(kernels), results(TORCH), strict=True)
    return max(
        _roundings(computed.float(), expected.float(), dtype) for computed, expected in pairs
    )


def _roundings(computed: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Return the largest difference of two results; infinity if a number is missing in one."""
    sizes = expected.abs()
    typical = sizes.sum() / sizes.count_nonzero()
    difference = float(((computed - expected).abs() / (sizes + typical)).max())
    return difference / torch.finfo(dtype).eps if isfinite(difference) else inf
