"""Pinned memory of the host, which copies may use while the host goes on."""

from torch import Tensor, UntypedStorage

_pinned: dict[int, UntypedStorage] = {}
"""By address; memory that was pinned stays so to the end, as the few buffers of a program do."""


def pin(tensor: Tensor) -> Tensor:
    """Mark a tensor's memory as pinned, and return the tensor."""
    storage = tensor.untyped_storage()
    _pinned[storage._cdata] = storage
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Return whether a tensor's memory is pinned."""
    return tensor.untyped_storage()._cdata in _pinned


def forget() -> None:
    """Free all of it."""
    _pinned.clear()
