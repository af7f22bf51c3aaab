"""Work of a card: what an operation computes, on which memory, launched on a stream or recorded by a graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from emulated_card.cards import Card, MemoryBlock
from emulated_card.operators import tensors_in


def perform(
    card: Card,
    function: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    is_kernel: bool = True,
    reads: Sequence[MemoryBlock] = (),
    writes: Sequence[MemoryBlock] = (),
) -> tuple[Any, list[MemoryBlock]]:
    """Compute on plain tensors as work of the card's current stream, and return the plain results and their blocks.

    `reads` and `writes` are the blocks of the arguments. The blocks of results are the caller's to hold until tensors
    on the card do so.
    """
    if card.capture is not None:
        card.capture.touch(reads, writes)
    if is_kernel:
        card.note("launch")
        card.stream.use(reads, writes)
    results = function(*args, **kwargs)
    result_blocks = [card.block_of(result) for result in tensors_in(results)]
    if is_kernel:
        card.stream.use((), result_blocks)
    if card.capture is not None:
        fresh = [
            result
            for result, block in zip(tensors_in(results), result_blocks, strict=True)
            if block not in writes
        ]
        card.capture.own([block for block in result_blocks if block not in writes])
        if is_kernel:
            card.capture.record(lambda: _again(function, args, kwargs, results), fresh)
    return results, result_blocks


def _again(
    function: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    results: object,
) -> None:
    """Compute once more, with results in the memory of the first time."""
    for first, again in zip(
        tensors_in(results), tensors_in(function(*args, **kwargs)), strict=True
    ):
        if first.untyped_storage()._cdata != again.untyped_storage()._cdata:
            first.copy_(again)


def poison(tensor: Tensor) -> None:
    """Fill memory with what nobody could mistake for a result."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype.is_signed:
        tensor.fill_(-99)
