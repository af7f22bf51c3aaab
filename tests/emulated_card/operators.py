"""What is known of torch's operators: which are views, which write into their arguments, which make the host wait."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

READS_ONE_NUMBER = {aten._local_scalar_dense, aten.item, aten.equal, aten.is_nonzero, aten.allclose}
"""`.item()`, `bool()`, `float()`, `int()` and comparisons that answer with a Python value.

In inference mode `item` arrives as it is, elsewhere as `_local_scalar_dense`.
"""
SIZED_BY_DATA = {
    aten.nonzero,
    aten.masked_select,
    aten._unique,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten.repeat_interleave,
}
"""The host has to read how large the result is before it goes on."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
"""These take index tensors of the host too, and copy them to the card; a mask as an index is a wait."""
FREE = {
    aten.empty,
    aten.empty_like,
    aten.new_empty,
    aten.empty_strided,
    aten.new_empty_strided,
    aten.detach,
    aten._fused_sdp_choice,
    aten.is_same_size,
    aten.set_,
    aten.resize_,
    aten.lift_fresh,
    aten._unsafe_view,
}
"""These run no kernel."""
MASKS = (torch.bool, torch.uint8)


@dataclass(frozen=True, slots=True)
class Operator:
    """The facts about one overload of an operator that the emulation needs."""

    name: str
    is_view: bool
    """The results share memory with an argument that is not written to."""
    is_kernel: bool
    is_copy: bool
    is_indexing: bool
    is_attention: bool
    reads_one_number: bool
    waits: bool
    written: tuple[int, ...]
    """The places of the arguments that it writes to."""
    written_names: tuple[str, ...]


@cache
def describe(overload: Any) -> Operator:
    """Return what is known of an overload such as `aten.add.Tensor`."""
    packet, arguments = overload.overloadpacket, overload._schema.arguments
    aliases = [
        (i, argument) for i, argument in enumerate(arguments) if argument.alias_info is not None
    ]
    written = [(i, argument.name) for i, argument in aliases if argument.alias_info.is_write]
    is_view = bool(aliases) and not written
    return Operator(
        name=packet.__name__,
        is_view=is_view,
        is_kernel=not is_view and packet not in FREE,
        is_copy=packet is aten.copy_,
        is_indexing=packet in INDEXING,
        is_attention="scaled_dot_product" in packet.__name__,
        reads_one_number=packet in READS_ONE_NUMBER,
        waits=packet in READS_ONE_NUMBER or packet in SIZED_BY_DATA,
        written=tuple(i for i, _ in written),
        written_names=tuple(name for _, name in written),
    )


def tensors_in(content: Any) -> Iterator[Tensor]:
    """Return the tensors in arguments or results, whatever they are nested in."""
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, (tuple, list)):
        for item in content:
            yield from tensors_in(item)
    elif isinstance(content, dict):
        yield from tensors_in(list(content.values()))


def replaced(content: Any, change: Any) -> Any:
    """Return arguments or results with `change` applied to every tensor in them."""
    if isinstance(content, Tensor):
        return change(content)
    if isinstance(content, (tuple, list)):
        items = [replaced(item, change) for item in content]
        make = getattr(
            type(content), "_make", type(content)
        )  # named tuples have it; torch's own tuples take a list
        return make(items)
    if isinstance(content, dict):
        return {name: replaced(item, change) for name, item in content.items()}
    return content
