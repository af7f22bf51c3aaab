"""What asks for a card from outside: factories with a device, `tensor.to("cuda")`, pinned memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from emulated_card.cards import Card
from emulated_card.copies import move
from emulated_card.operators import replaced, tensors_in
from emulated_card.pinned import is_pinned, pin
from emulated_card.tensors import CardTensor
from emulated_card.work import perform

if TYPE_CHECKING:
    from emulated_card.machine import Machine

FROM_HOST = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor}
"""Factories whose numbers are the host's."""
EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted}


class CardRequests(TorchFunctionMode):
    """While it lasts, in the thread that entered it, what is asked for on a card is made there."""

    def __init__(self, machine: "Machine") -> None:
        super().__init__()
        self._machine = machine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        method = METHODS.get(func)
        if method is not None:
            return method(*args, **kwargs)
        if not kwargs:
            return func(*args)
        if kwargs.get("device") is not None:
            return self._make(self._machine.card_of(kwargs["device"]), func, args, kwargs)
        if kwargs.pop("pin_memory", False):
            return pin(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _make(
        self, card: Card | None, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Call a function that was given a device; None is the host."""
        if card is None and not any(
            isinstance(tensor, CardTensor) for tensor in tensors_in((args, kwargs))
        ):
            result = func(*args, **kwargs)
            return pin(result) if kwargs.get("pin_memory") else result
        if func in FROM_HOST:
            result = func(*args, **(kwargs | {"device": None}))
            return move(result, card.device if card else "cpu")
        kwargs = kwargs | {"device": "cpu"}
        if card is None:
            return func(*replaced(args, _held), **kwargs)
        generator = kwargs.get("generator")
        if generator is not None:
            raise RuntimeError(
                f"Expected a 'cuda' device type for generator but found '{generator.device.type}'"
            )
        with torch.no_grad():
            result, _blocks = perform(
                card, func, replaced(args, _held), kwargs, is_kernel=func not in EMPTY
            )
        return CardTensor(result, card)


def _held(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, CardTensor) else tensor


def _cuda(tensor: Tensor, device: Any = None, non_blocking: bool = False, **_: object) -> Tensor:
    return move(tensor, "cuda" if device is None else device, non_blocking=non_blocking)


def _to(tensor: Tensor, *args: object, **kwargs: Any) -> Tensor:
    return move(tensor, *args, **kwargs)


def _cpu(tensor: Tensor, *_: object, **__: object) -> Tensor:
    return move(tensor, "cpu")


def _may_share_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether a module may put one tensor's memory into the other; else it replaces its parameter."""
    if isinstance(one, CardTensor) or isinstance(other, CardTensor):
        return False
    return torch._has_compatible_shallow_copy_type(one, other)


METHODS: dict[Any, Callable[..., Any]] = {
    Tensor.to: _to,
    Tensor.cuda: _cuda,
    Tensor.cpu: _cpu,
    Tensor.pin_memory: lambda tensor, *_: pin(tensor.clone()),
    Tensor.is_pinned: lambda tensor, *_: is_pinned(tensor),
    torch._has_compatible_shallow_copy_type: _may_share_memory,
    torch._C._nn._parse_to: torch._C._nn._parse_to,
}
