"""Attention in Triton, without a table of what attends to what; see `base`.

Importing this module needs Triton. Products are those of a card's matrix units, which add in fp32;
what is between them is computed in fp32. A program reads the keys that its row has, however many
there may be. With up to `MOST_IN_PARTS` tokens of a row several programs share its keys, always by
the same parts, and another kernel joins what they found: what a token finds depends neither on the
other tokens and rows nor on how far keys are padded.
"""

from math import log

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench_kit.models.executors.kernels.base import PART

FEWEST_QUERIES, MOST_QUERIES = 16, 64
"""The queries of one program: no fewer than the smallest product of a card's matrix units."""
MOST_KEYS, BLOCK_BYTES = 64, 16384
"""The keys that a program reads at once, and their size."""
JOINED = 16
"""The parts of one query that are read at once."""
PER_E = 1 / log(2)
"""The base of exponentials is 2, of which a card has an instruction."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    cells: Tensor,
    trash: int,
    prefixes: Tensor | None,
    nodes: Tensor | None,
    scale: float,
) -> Tensor:
    rows, kv_heads, queries_of_head, dim = queries.shape
    width = last.shape[1]
    heads = kv_heads * queries_of_head // width
    found = queries.new_empty((rows, width, heads * dim))
    _launch_attention(
        queries, keys, values, last, cells, trash, prefixes, nodes, scale, found, None, 1
    )
    return found


def attend_in_parts(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    cells: Tensor,
    trash: int,
    prefixes: Tensor | None,
    nodes: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    rows, kv_heads, queries_of_head, dim = queries.shape
    width = last.shape[1]
    heads = kv_heads * queries_of_head // width
    parts = triton.cdiv(keys.shape[2], PART)
    found = queries.new_empty((rows, width, heads, parts, dim), dtype=torch.float32)
    weights = queries.new_empty((rows, width, heads, parts, 2), dtype=torch.float32)
    _launch_attention(
        queries, keys, values, last, cells, trash, prefixes, nodes, scale, found, weights, parts
    )
    return found, weights


def _launch_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    cells: Tensor,
    trash: int,
    prefixes: Tensor | None,
    nodes: Tensor | None,
    scale: float,
    found: Tensor,
    weights: Tensor | None,
    parts: int,
) -> None:
    rows, kv_heads, count, dim = queries.shape
    width = last.shape[1]
    # Numbers of four bytes fill a program's registers with fewer queries.
    most = MOST_QUERIES if queries.element_size() == 2 else FEWEST_QUERIES
    at_once = min(most, max(FEWEST_QUERIES, triton.next_power_of_2(count)))
    block = max(16, triton.next_power_of_2(dim))
    _attention_kernel[(rows * kv_heads, triton.cdiv(count, at_once), parts)](
        queries.contiguous(),
        keys,
        values,
        last,
        cells,
        prefixes,
        nodes.contiguous() if nodes is not None else None,
        found,
        weights,
        scale * PER_E,
        width,
        count,
        kv_heads,
        dim,
        keys.shape[2],
        parts,
        nodes.shape[2] if nodes is not None else 0,
        trash,
        *keys.stride()[:3],
        *values.stride()[:3],
        *last.stride(),
        *cells.stride(),
        prefixes.stride(0) if prefixes is not None else 0,
        PART=PART,
        WIDTH=triton.next_power_of_2(width),
        QUERIES=at_once,
        KEYS=max(16, min(MOST_KEYS, BLOCK_BYTES // (block * queries.element_size()))),
        BLOCK=block,
        num_warps=4 if at_once < MOST_QUERIES else 8,
        num_stages=2,
    )


@triton.jit
def _attention_kernel(
    queries,
    keys,
    values,
    last,
    cells,
    prefixes,
    nodes,
    found,
    weights,
    scale,
    width,
    count,
    kv_heads,
    dim,
    length,
    parts,
    node_count,
    trash,
    key_row_stride,
    key_head_stride,
    key_stride,
    value_row_stride,
    value_head_stride,
    value_stride,
    last_row_stride,
    last_stride,
    cell_row_stride,
    cell_stride,
    prefix_stride,
    PART: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute some queries of the heads that share keys, in all keys of their row or, with weights,
    in one part of them.
    """
    row = (tl.program_id(0) // kv_heads).to(tl.int64)
    kv_head = tl.program_id(0) % kv_heads
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    is_query = query < count
    column = query % width
    number = tl.arange(0, BLOCK)
    is_number = number < dim
    own = tl.load(last + row * last_row_stride + column * last_stride, mask=is_query, other=-1)
    # Behind the last token of the row nothing was ever written.
    end_of_row = tl.minimum(
        _end_of(cells + row * cell_row_stride, cell_stride, width, trash, WIDTH), length
    )
    end = end_of_row
    if nodes is None:
        end = tl.minimum(end, tl.max(own, 0).to(tl.int32) + 1)
    else:
        prefix = tl.load(prefixes + row * prefix_stride).to(tl.int32)
        marks = nodes + row * width * node_count
        marks_of_query = (column * node_count)[:, None]
    begin = end * 0
    if weights is not None:
        begin += tl.program_id(2) * PART
        end = tl.minimum(end, begin + PART)
    place = (row * kv_heads + kv_head) * count + query
    asked = tl.load(
        queries + place[:, None] * dim + number[None, :],
        mask=is_query[:, None] & is_number[None, :],
        other=0.0,
    )
    keys += row * key_row_stride + kv_head.to(tl.int64) * key_head_stride
    values += row * value_row_stride + kv_head.to(tl.int64) * value_head_stride
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, BLOCK), tl.float32)
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < end
        block = tl.load(
            keys + key[None, :] * key_stride + number[:, None],
            mask=is_key[None, :] & is_number[:, None],
            other=0.0,
        )
        scores = tl.dot(asked, block, input_precision="ieee") * scale
        sees = key[None, :] <= own[:, None]
        if nodes is not None:
            node = key - prefix
            is_node = (node >= 0) & (node < node_count)
            mark = tl.load(
                marks + (marks_of_query + node[None, :]),
                mask=is_query[:, None] & is_node[None, :],
                other=0,
            )
            sees = sees | (mark != 0)
        scores = tl.where(sees & is_key[None, :], scores, float("-inf"))
        most = tl.maximum(largest, tl.max(scores, 1))
        # Of a query that has seen no key yet, everything stays 0.
        base = tl.where(most == float("-inf"), 0.0, most)
        weight = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weight, 1)
        block = tl.load(
            values + key[:, None] * value_stride + number[None, :],
            mask=is_key[:, None] & is_number[None, :],
            other=0.0,
        )
        result = result * shrink[:, None]
        result += tl.dot(weight.to(block.dtype), block, input_precision="ieee")
        largest = most
    # By token, as the next product reads them, and not by head.
    heads = kv_heads * (count // width)
    place = (row * width + column) * heads + kv_head * (count // width) + query // width
    is_result = is_query[:, None] & is_number[None, :]
    if weights is None:
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        to = found + place[:, None] * dim + number[None, :]
        tl.store(to, result.to(asked.dtype), mask=is_result)
    elif begin < end_of_row:
        place = place * parts + tl.program_id(2)
        tl.store(found + place[:, None] * dim + number[None, :], result, mask=is_result)
        tl.store(weights + place * 2, largest, mask=is_query)
        tl.store(weights + place * 2 + 1, total, mask=is_query)


@triton.jit
def _end_of(cells, stride, width, trash, WIDTH: tl.constexpr):
    """Return the number of the key behind the last token of a row, 0 if it is padding alone."""
    column = tl.arange(0, WIDTH)
    cell = tl.load(cells + column * stride, mask=column < width, other=trash)
    return (tl.max(tl.where(cell == trash, -1, cell), 0) + 1).to(tl.int32)


def join_parts(found: Tensor, weights: Tensor, cells: Tensor, trash: int, like: Tensor) -> Tensor:
    rows, width, heads, parts, dim = found.shape
    whole = like.new_empty((rows, width, heads * dim))
    _join_kernel[(rows * width * heads,)](
        found,
        weights,
        cells,
        whole,
        width,
        heads,
        dim,
        parts,
        trash,
        *cells.stride(),
        PART=PART,
        WIDTH=triton.next_power_of_2(width),
        JOINED=JOINED,
        BLOCK=triton.next_power_of_2(dim),
        num_warps=1,
    )
    return whole


@triton.jit
def _join_kernel(
    found,
    weights,
    cells,
    whole,
    width,
    heads,
    dim,
    parts,
    trash,
    cell_row_stride,
    cell_stride,
    PART: tl.constexpr,
    WIDTH: tl.constexpr,
    JOINED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute one query from what was found in the parts that its row attends to."""
    query = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK)
    is_number = number < dim
    row = query // (width * heads)
    end = _end_of(cells + row * cell_row_stride, cell_stride, width, trash, WIDTH)
    filled = tl.minimum(tl.cdiv(end, PART), parts)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    result = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, filled, JOINED):
        part = first + tl.arange(0, JOINED)
        is_part = part < filled
        place = query * parts + part
        exponents = tl.load(weights + place * 2, mask=is_part, other=float("-inf"))
        sums = tl.load(weights + place * 2 + 1, mask=is_part, other=0.0)
        block = tl.load(
            found + place[:, None] * dim + number[None, :],
            mask=is_part[:, None] & is_number[None, :],
            other=0.0,
        )
        most = tl.maximum(largest, tl.max(exponents, 0))
        base = tl.where(most == float("-inf"), 0.0, most)
        shares = tl.exp2(exponents - base)
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(sums * shares, 0)
        result = result * shrink + tl.sum(block * shares[:, None], 0)
        largest = most
    result = result / tl.where(total == 0.0, 1.0, total)
    tl.store(whole + query * dim + number, result.to(whole.dtype.element_ty), mask=is_number)
