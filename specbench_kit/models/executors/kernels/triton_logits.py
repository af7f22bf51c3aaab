"""What is said of distributions, in Triton: logits are read once; see `description`.

Importing this module needs Triton. Several programs share the logits of a token, and another kernel
joins what they found. Everything is computed in fp32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench_kit.models.executors.kernels.description import FIELDS, STATISTICS

CHUNK = 4096
"""The logits that one program reads."""
SUMMARY = 8
"""The numbers that a program finds; see `operators.summarise`."""


def summarise(logits: Tensor, temperature: float) -> Tensor:
    vocabulary = logits.shape[-1]
    rows = logits.reshape(-1, vocabulary)
    chunks = triton.cdiv(vocabulary, CHUNK)
    found = logits.new_empty((*logits.shape[:-1], chunks, SUMMARY), dtype=torch.float32)
    _summary_kernel[(len(rows), chunks)](
        rows,
        found,
        vocabulary,
        rows.stride(0),
        chunks,
        1 / temperature,
        CHUNK=CHUNK,
        SUMMARY=SUMMARY,
        num_warps=4,
    )
    return found


@triton.jit
def _summary_kernel(
    logits,
    found,
    vocabulary,
    stride,
    chunks,
    factor,
    CHUNK: tl.constexpr,
    SUMMARY: tl.constexpr,
):
    """Compute the summary of one chunk of the logits of one token."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    number = tl.arange(0, CHUNK)
    token = chunk * CHUNK + number
    inside = token < vocabulary
    some = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    is_nan = some != some
    some = tl.where(is_nan, float("-inf"), some)
    largest, best = tl.max(some, 0, return_indices=True)
    second = tl.max(tl.where(number == best, float("-inf"), some), 0)
    # Where all logits are minus infinity, as those of forbidden tokens, no exponential is left.
    base = tl.where(largest == float("-inf"), 0.0, largest)
    exponents = (some - base) * factor
    shares = tl.exp(exponents)
    total = tl.sum(shares, 0)
    weighted = tl.sum(tl.where(shares == 0.0, 0.0, shares * exponents), 0)
    mean = tl.sum(tl.where(inside, some, 0.0), 0) / tl.minimum(CHUNK, vocabulary - chunk * CHUNK)
    distance = tl.where(inside, some - mean, 0.0)
    squares = tl.sum(distance * distance, 0)
    to = found + (row * chunks + chunk) * SUMMARY
    tl.store(to, largest)
    tl.store(to + 1, (chunk * CHUNK + best).to(tl.float32))
    tl.store(to + 2, second)
    tl.store(to + 3, total)
    tl.store(to + 4, weighted)
    tl.store(to + 5, mean)
    tl.store(to + 6, squares)
    tl.store(to + 7, tl.max(is_nan.to(tl.float32), 0))


def join_summaries(
    found: Tensor, tokens: Tensor, vocabulary: int, temperature: float, statistics: bool
) -> tuple[Tensor, Tensor]:
    chunks = found.shape[-2]
    count = FIELDS + STATISTICS if statistics else FIELDS
    fields = found.new_empty((*tokens.shape, count), dtype=torch.float64)
    best = tokens.new_empty(tokens.shape)
    tokens = tokens.contiguous()
    _join_kernel[(tokens.numel(),)](
        found,
        tokens,
        fields,
        best,
        vocabulary,
        chunks,
        count,
        1 / temperature,
        STATISTICS=statistics,
        CHUNK=CHUNK,
        SUMMARY=SUMMARY,
        BLOCK=triton.next_power_of_2(chunks),
        num_warps=1,
    )
    return fields, best


@triton.jit
def _join_kernel(
    found,
    tokens,
    fields,
    best,
    vocabulary,
    chunks,
    count,
    factor,
    STATISTICS: tl.constexpr,
    CHUNK: tl.constexpr,
    SUMMARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the fields of one token from the summaries of its chunks."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, BLOCK)
    inside = chunk < chunks
    source = found + (row * chunks + chunk) * SUMMARY
    every = tl.load(source, mask=inside, other=float("-inf"))
    largest, first = tl.max(every, 0, return_indices=True)
    number = tl.load(found + (row * chunks + first) * SUMMARY + 1)
    is_nan = tl.max(tl.load(source + 7, mask=inside, other=0.0), 0)
    to = fields + row * count
    tl.store(to, number.to(tl.float64))
    tl.store(to + 1, is_nan.to(tl.float64))
    tl.store(to + 2, tl.load(tokens + row).to(tl.float64))
    tl.store(best + row, number.to(tl.int64))
    if STATISTICS:
        second = tl.load(source + 2, mask=inside, other=float("-inf"))
        second = tl.max(tl.where(chunk == first, second, every), 0)
        base = tl.where(largest == float("-inf"), 0.0, largest)
        exponents = tl.where(every == float("-inf"), 0.0, (every - base) * factor)
        shares = tl.where(every == float("-inf"), 0.0, tl.exp(exponents))
        sums = tl.load(source + 3, mask=inside, other=0.0)
        weighted = tl.load(source + 4, mask=inside, other=0.0)
        total = tl.sum(sums * shares, 0)
        weighted = tl.sum((weighted + sums * exponents) * shares, 0)
        means = tl.load(source + 5, mask=inside, other=0.0)
        squares = tl.load(source + 6, mask=inside, other=0.0)
        counts = tl.minimum(CHUNK, vocabulary - chunk * CHUNK)
        counts = tl.where(inside, counts, 0).to(tl.float32)
        mean = tl.sum(means * counts, 0) / vocabulary
        distance = tl.where(inside, means - mean, 0.0)
        squares = tl.sum(squares + counts * distance * distance, 0)
        bad = tl.where(is_nan > 0.0, float("nan"), 0.0)
        tl.store(to + 3, (1.0 / total + bad).to(tl.float64))
        tl.store(to + 4, (tl.log(total) - weighted / total + bad).to(tl.float64))
        margin = (1.0 - tl.exp((second - base) * factor)) / total
        tl.store(to + 5, (margin + bad).to(tl.float64))
        tl.store(to + 6, (tl.sqrt(squares / vocabulary) + bad).to(tl.float64))
