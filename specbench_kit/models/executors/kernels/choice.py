"""Which kernels a device gets: Triton's where they are there and agree with torch's operations."""

import logging
from functools import cache
from importlib.util import find_spec
from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from specbench_kit.core.plain_text import first_line
from specbench_kit.models.executors.kernels.base import PART, LayerKernels, LayerSizes
from specbench_kit.models.executors.kernels.by_torch import TORCH
from specbench_kit.models.executors.kernels.compact_mask import CompactMask
from specbench_kit.models.executors.kernels.description import TOP, Describe, Details, describe
from specbench_kit.models.executors.kernels.operators import FUSED, describe_fused

ROUNDINGS = 8
"""The largest accepted difference of two results; see `largest_difference`."""
STATISTICS_TOLERANCE = 1e-4
"""The accepted relative difference of two statistics: sums of a hundred thousand numbers, in other
orders.
"""
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


@cache
def choose_describe(device: torch.device, dtype: torch.dtype) -> Describe:
    """Return what describes distributions of logits of a data type on a device, as `choose`
    does.
    """
    if device.type != "cuda" or missing():
        return describe
    try:
        if describes_alike(describe_fused, device, dtype):
            return describe_fused
        reason = "Triton's kernels say something else of logits than torch's operations"
    except Exception as error:  # whatever a compiler or a card says
        reason = f"Triton's kernels fail: {first_line(error)}"
    _LOG.warning("TORCH'S DESCRIPTIONS OF LOGITS ON %s: %s", device, reason)
    return describe


@torch.inference_mode()
def describes_alike(way: Describe, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether another way to describe distributions says what torch's operations say, of
    random logits.
    """
    random = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn((2, 3, 9001), generator=random).to(device, dtype)
    # Tokens are equal where logits are: candidates are compared by their scores alone.
    tokens = torch.arange(6).view(2, 3).to(device)
    for details in (Details(), Details(0.7), Details(1.0, candidates=True)):
        (fields, best), (expected, expected_best) = (
            of(logits, tokens, details) for of in (way, describe)
        )
        counts = fields.shape[-1] - (TOP if details.candidates else 0)
        alike = torch.isclose(fields, expected, rtol=STATISTICS_TOLERANCE, atol=1e-6)
        if not (alike[..., :counts].all() and torch.equal(best, expected_best)):
            return False
    return True


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
    masks = _some_masks(rows, width, device)
    group = heads // kv_heads
    queries = numbers(rows, kv_heads, group * width, dim)
    seen = numbers(2, rows, kv_heads, len(masks[-1].keys), dim)

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
            *(
                of.attention(mask, group, dtype)(queries, *_first(seen, len(mask.keys)), dim**-0.5)
                for mask in masks
            ),
        ]

    pairs = zip(results(kernels), results(TORCH), strict=True)
    return max(
        _roundings(computed.float(), expected.float(), dtype) for computed, expected in pairs
    )


def _first(seen: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the first keys and their values, as parts of a larger store."""
    return seen[0, :, :, :length], seen[1, :, :, :length]


def _some_masks(rows: int, width: int, device: torch.device) -> list[CompactMask]:
    """Return masks of chains and of trees, over keys that one program reads and over more."""
    length = PART + 9
    keys = torch.arange(length).to(device)
    last = torch.arange(length - rows * width, length).view(rows, width).to(device)
    nodes = torch.eye(width, dtype=torch.uint8).expand(rows, -1, -1).to(device)
    prefixes = last[:, :1]
    before = (prefixes - 1).expand(-1, width)
    return [
        CompactMask(keys[:PART], last - 2 * rows * width, length, last - 2 * rows * width),
        CompactMask(keys, last, length, last),
        CompactMask(keys, last, length, before, prefixes, nodes),
    ]


def _roundings(computed: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Return the largest difference of two results; infinity if a number is missing in one."""
    sizes = expected.abs()
    typical = sizes.sum() / sizes.count_nonzero()
    difference = float(((computed - expected).abs() / (sizes + typical)).max())
    return difference / torch.finfo(dtype).eps if isfinite(difference) else inf
