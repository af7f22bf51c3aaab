"""Tensors on a card.

Autograd works above them as ever: `__torch_dispatch__` sees the operations that are left below it. To torch's C++ code
they are tensors of the CPU; what asks in Python is told of the card.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from emulated_card.cards import Card, MemoryBlock
from emulated_card.copies import copy_into, move
from emulated_card.counts import calling_place
from emulated_card.operators import MASKS, Operator, describe, replaced, tensors_in
from emulated_card.work import perform


class CardTensor(Tensor):
    """A tensor on a card; `held` has its numbers, in memory of the host that stands for the card's."""

    held: Tensor
    card: Card
    block: MemoryBlock

    @staticmethod
    def __new__(cls, held: Tensor, card: Card) -> "CardTensor":
        """Place the memory of a plain tensor on a card."""
        tensor: CardTensor = Tensor._make_subclass(cls, held, held.requires_grad)
        tensor.held, tensor.card, tensor.block = held, card, card.block_of(held)
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operation on the memory that the tensors hold."""
        return _compute(func, args, kwargs or {})

    device = property(lambda self: self.card.device)  # type: ignore[assignment]
    is_cuda = property(lambda _: True)  # type: ignore[assignment]
    is_cpu = property(lambda _: False)  # type: ignore[assignment]

    def get_device(self) -> int:
        return self.card.index

    def to(self, *args: object, **kwargs: Any) -> Tensor:  # type: ignore[override]
        return move(self, *args, **kwargs)

    def cpu(self, *_: object, **__: object) -> Tensor:
        return move(self, "cpu")

    def cuda(self, device: Any = "cuda", non_blocking: bool = False, **_: object) -> Tensor:  # type: ignore[override]
        return move(self, device, non_blocking=non_blocking)

    def tolist(self) -> Any:
        return move(self, "cpu").tolist()

    def numpy(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            f"memory first: {calling_place()}"
        )

    __array__ = __dlpack__ = numpy  # type: ignore[assignment]

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, **({"dtype": self.dtype, "device": self.device} | options))

    def pin_memory(self, *_: object) -> NoReturn:
        raise RuntimeError(
            f"cannot pin a tensor of {self.device}: only dense CPU tensors can be pinned"
        )

    def is_pinned(self, *_: object) -> bool:
        return False

    def record_stream(self, stream: Any) -> None:
        """Do nothing: memory is not reused here while a stream may still work on it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = self.detach().clone()
        is_parameter = isinstance(self, nn.Parameter)
        memo[id(self)] = copy = nn.Parameter(copy, self.requires_grad) if is_parameter else copy
        return copy.requires_grad_(self.requires_grad)

    def __repr__(self, **_: object) -> str:
        return f"{self.held!r} on {self.device}"


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation of which at least one tensor is on a card, and place its results there."""
    operator = describe(func)
    if operator.is_copy:
        return copy_into(
            args[0], args[1], bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False)
        )
    placed: list[CardTensor] = []
    hosted: list[Tensor] = []
    plain_args = [_plain(argument, placed, hosted) for argument in args]
    plain_kwargs = (
        {name: _plain(argument, placed, hosted) for name, argument in kwargs.items()}
        if kwargs
        else {}
    )
    card = placed[0].card
    if hosted or len(placed) > 1:
        _require_one_device(operator, args, placed, hosted)
    if operator.waits:
        card.wait()
    elif operator.is_indexing:
        _index(card, args[1])
    elif operator.is_attention:
        _require_aligned(kwargs.get("attn_mask", args[3] if len(args) > 3 else None))
    if operator.is_view:
        views = func(*plain_args, **plain_kwargs)
        # `reshape` and `to` copy where there is no view, and inference mode lets them arrive here undivided.
        if _share_memory(views, placed):
            return _place(views, card, ())
    written = [args[index] for index in operator.written if index < len(args)]
    written += [kwargs[name] for name in operator.written_names if name in kwargs]
    writes = [tensor.block for tensor in tensors_in(written) if isinstance(tensor, CardTensor)]
    reads = [tensor.block for tensor in placed]
    kernel = operator.is_kernel or operator.is_view
    results, _blocks = perform(
        card, func, plain_args, plain_kwargs, is_kernel=kernel, reads=reads, writes=writes
    )
    return results if operator.reads_one_number else _place(results, card, placed if writes else ())


def _require_aligned(mask: object) -> None:
    """Refuse a mask that begins where a real kernel, which reads 16 bytes at a time, would read a misaligned address.

    Seen on an H100, where the whole process lost its card.
    """
    if isinstance(mask, CardTensor) and mask.storage_offset() * mask.element_size() % 16:
        raise RuntimeError(
            f"CUDA error: misaligned address, in the mask of an attention: {calling_place()}"
        )


def _share_memory(results: Any, arguments: Sequence[CardTensor]) -> bool:
    """Return whether all results lie in the memory of an argument."""
    memory = {argument.held.untyped_storage()._cdata for argument in arguments}
    return all(result.untyped_storage()._cdata in memory for result in tensors_in(results))


def _plain(argument: Any, placed: list[CardTensor], hosted: list[Tensor]) -> Any:
    """Return an argument with the plain tensors of those on cards, and sort its tensors into those of cards and not."""
    if type(argument) is CardTensor:
        placed.append(argument)
        return argument.held
    if type(argument) in (list, tuple):
        return [_plain(item, placed, hosted) for item in argument]
    if isinstance(argument, Tensor):
        hosted.append(argument)
    return argument


def _place(results: Any, card: Card, arguments: Sequence[CardTensor]) -> Any:
    """Place results on a card; what works in place returns its argument."""
    if isinstance(results, Tensor):
        for argument in arguments:
            if argument.held is results:
                return argument
        return CardTensor(results, card)
    return replaced(results, lambda result: _place(result, card, arguments))


def _require_one_device(
    operator: Operator, args: Sequence[Any], placed: Sequence[CardTensor], hosted: Sequence[Tensor]
) -> None:
    """Raise RuntimeError if tensors are on several devices, where single numbers of the host do not count.

    Index tensors of the host are copied to the card of what they index; not the other way round.
    """
    if operator.is_indexing and isinstance(args[0], CardTensor):
        indices = {id(index) for index in args[1]}
        hosted = [tensor for tensor in hosted if id(tensor) not in indices]
    cards = {tensor.card for tensor in placed}
    on_host = any(tensor.dim() for tensor in hosted) or (
        operator.is_indexing and not isinstance(args[0], CardTensor)
    )
    if len(cards) > 1 or on_host:
        devices = sorted([*(str(card.device) for card in cards), *(["cpu"] if on_host else [])])
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(devices)}: {operator.name} at {calling_place()}"
        )


def _index(card: Card, indices: Sequence[Tensor | None]) -> None:
    """Count the wait for the size of a mask, and the copies of indices of the host."""
    if any(index is not None and index.dtype in MASKS for index in indices):
        card.wait()
    for index in indices:
        if index is not None and not isinstance(index, CardTensor):
            card.note("copy to card")
