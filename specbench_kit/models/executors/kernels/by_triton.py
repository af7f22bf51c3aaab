"""The work between the matrix products of a layer in Triton, one kernel each; see `base`.

Importing this module needs Triton. Numbers are computed in fp32, and rounded to the model's data
type wherever torch's operations round. No product is added to a sum unrounded (`enable_fp_fusion`),
since torch's operations, which are kernels apart, cannot do so either.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_WARPS = 16
HEADS = 8
"""The heads of a token that one program rotates."""
GATES = 1024
"""The gates that one program computes."""


def norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    hidden = hidden.contiguous()
    normed = torch.empty_like(hidden)
    _launch_norm(hidden, None, weight, epsilon, None, normed)
    return normed


def add_norm(
    hidden: Tensor, added: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    hidden, added = hidden.contiguous(), added.contiguous()
    total = torch.empty_like(hidden)
    normed = torch.empty_like(hidden)
    _launch_norm(hidden, added, weight, epsilon, total, normed)
    return total, normed


def _launch_norm(
    hidden: Tensor,
    added: Tensor | None,
    weight: Tensor,
    epsilon: float,
    total: Tensor | None,
    normed: Tensor,
) -> None:
    width = hidden.shape[-1]
    block = triton.next_power_of_2(width)
    _norm_kernel[(hidden.numel() // width,)](
        hidden,
        added,
        weight,
        total,
        normed,
        width,
        epsilon,
        BLOCK=block,
        num_warps=min(MOST_WARPS, max(1, block // 256)),
        enable_fp_fusion=False,
    )


@triton.jit
def _norm_kernel(hidden, added, weight, total, normed, width, epsilon, BLOCK: tl.constexpr):
    """Compute one token: its sum, if something is added, and the norm of that."""
    column = tl.arange(0, BLOCK)
    inside = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    numbers = tl.load(hidden + place, mask=inside, other=0.0)
    dtype = numbers.dtype
    wide = numbers.to(tl.float32)
    if added is not None:
        # The norm reads the sum as later layers do, rounded.
        wide += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        rounded = wide.to(dtype)
        tl.store(total + place, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    factors = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + place, (wide * scale * factors).to(dtype), mask=inside)


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
    group = heads // kv_heads
    queries = projected.new_empty((rows, kv_heads, group * width, dim))
    new_keys = projected.new_empty((rows, kv_heads, width, dim))
    block = triton.next_power_of_2(dim // 2)
    _rotate_kernel[(rows * width, triton.cdiv(all_heads, HEADS))](
        projected.contiguous(),
        cosines.contiguous(),
        sines.contiguous(),
        norms,
        queries,
        new_keys,
        keys,
        values,
        slots,
        cells,
        width,
        heads,
        kv_heads,
        dim,
        epsilon,
        *(keys.stride()[:3] if keys is not None else (0, 0, 0)),
        *(values.stride()[:3] if values is not None else (0, 0, 0)),
        slots.stride(0) if slots is not None else 0,
        *(cells.stride() if cells is not None else (0, 0)),
        HEADS=HEADS,
        BLOCK=block,
        num_warps=HEADS // 2,
        enable_fp_fusion=False,
    )
    return queries, new_keys


@triton.jit
def _rotate_kernel(
    projected,
    cosines,
    sines,
    norms,
    queries,
    new_keys,
    keys,
    values,
    slots,
    cells,
    width,
    heads,
    kv_heads,
    dim,
    epsilon,
    key_slot_stride,
    key_head_stride,
    key_cell_stride,
    value_slot_stride,
    value_head_stride,
    value_cell_stride,
    slot_stride,
    cell_row_stride,
    cell_stride,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute some heads [HEADS, 1] of one token, as two halves that turn into each other."""
    token = tl.program_id(0).to(tl.int64)
    row = token // width
    column = token % width
    half = dim // 2
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    first = tl.arange(0, BLOCK)[None, :]
    second = half + first
    inside = first < half
    turns = (head < heads + kv_heads) & inside
    is_query = (head < heads) & inside
    is_key = (head >= heads) & turns
    is_value = (head >= heads + kv_heads) & (head < heads + 2 * kv_heads) & inside
    source = projected + (token * (heads + 2 * kv_heads) + head) * dim
    left = tl.load(source + first, mask=turns | is_value, other=0.0)
    right = tl.load(source + second, mask=turns | is_value, other=0.0)
    if values is not None:
        slot = tl.load(slots + row * slot_stride)
        cell = tl.load(cells + row * cell_row_stride + column * cell_stride)
        value = values + slot * value_slot_stride + cell * value_cell_stride
        value += (head - heads - kv_heads) * value_head_stride
        tl.store(value + first, left, mask=is_value)
        tl.store(value + second, right, mask=is_value)
    dtype = left.dtype
    if norms is not None:
        wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
        squares = tl.sum(wide_left * wide_left + wide_right * wide_right, 1)[:, None]
        scale = tl.rsqrt(squares / dim + epsilon)
        factors = norms + head * dim
        left = _times((wide_left * scale).to(dtype), factors + first, turns)
        right = _times((wide_right * scale).to(dtype), factors + second, turns)
    cosine, sine = cosines + token * dim, sines + token * dim
    turned_left = _times(left, cosine + first, inside).to(tl.float32)
    turned_left += _times(right, sine + first, inside).to(tl.float32)
    turned_right = _times(right, cosine + second, inside).to(tl.float32)
    turned_right += _times(left, sine + second, inside).to(tl.float32)
    left, right = turned_left.to(dtype), turned_right.to(dtype)
    # Queries whose heads share keys stand one below the other.
    query = queries + ((row * heads + head) * width + column) * dim
    tl.store(query + first, left, mask=is_query)
    tl.store(query + second, right, mask=is_query)
    new_key = new_keys + ((row * kv_heads + head - heads) * width + column) * dim
    tl.store(new_key + first, left, mask=is_key)
    tl.store(new_key + second, right, mask=is_key)
    if keys is not None:
        key_slot = tl.load(slots + row * slot_stride)
        key_cell = tl.load(cells + row * cell_row_stride + column * cell_stride)
        key = keys + key_slot * key_slot_stride + key_cell * key_cell_stride
        key += (head - heads) * key_head_stride
        tl.store(key + first, left, mask=is_key)
        tl.store(key + second, right, mask=is_key)


@triton.jit
def _times(numbers, factors, inside):
    """Return the product with the factors at an address, rounded to the numbers' data type."""
    loaded = tl.load(factors, mask=inside, other=0.0).to(tl.float32)
    return (numbers.to(tl.float32) * loaded).to(numbers.dtype)


def gate(gates: Tensor) -> Tensor:
    gates = gates.contiguous()
    width = gates.shape[-1] // 2
    gated = gates.new_empty((*gates.shape[:-1], width))
    block = min(GATES, triton.next_power_of_2(width))
    grid = (gated.numel() // width, triton.cdiv(width, block))
    _gate_kernel[grid](gates, gated, width, BLOCK=block, enable_fp_fusion=False)
    return gated


@triton.jit
def _gate_kernel(gates, gated, width, BLOCK: tl.constexpr):
    """Compute a part of one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    source = gates + token * 2 * width + column
    numbers = tl.load(source, mask=inside, other=0.0)
    wide = numbers.to(tl.float32)
    activated = wide / (1 + tl.exp(-wide))
    result = _times(activated.to(numbers.dtype), source + width, inside)
    tl.store(gated + token * width + column, result, mask=inside)
