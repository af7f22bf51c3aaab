"""Copies between the host and cards, and what of them the host may still be waiting for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emulated_card.counts import calling_place
from emulated_card.operators import aten
from emulated_card.pinned import is_pinned, pin
from emulated_card.work import perform, poison

if TYPE_CHECKING:
    from emulated_card.tensors import CardTensor


@dataclass
class Request:
    """The arguments of `tensor.to(...)`; None leaves the device or the data type as it is."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    non_blocking: bool = False
    copy: bool = False
    memory_format: torch.memory_format = torch.preserve_format

    @classmethod
    def parse(cls, *args: object, **kwargs: Any) -> "Request":
        """Return what the arguments of `Tensor.to` mean."""
        request = (
            cls(**kwargs) if "other" not in kwargs else cls.parse(kwargs.pop("other"), **kwargs)
        )
        flags = [argument for argument in args if isinstance(argument, bool)]
        for name, flag in zip(("non_blocking", "copy"), flags, strict=False):
            setattr(request, name, flag)
        for argument in args:
            if isinstance(argument, Tensor):
                request.device, request.dtype = argument.device, argument.dtype
            elif isinstance(argument, torch.dtype):
                request.dtype = argument
            elif not isinstance(argument, bool) and argument is not None:
                request.device = torch.device(argument)
        if isinstance(request.device, (str, int)):
            request.device = torch.device(request.device)
        return request


def move(source: Tensor, *args: object, **kwargs: Any) -> Tensor:
    """Return a tensor as `Tensor.to` does, on the host or on a card."""
    from emulated_card.machine import current_machine
    from emulated_card.tensors import CardTensor

    request = Request.parse(*args, **kwargs)
    origin = source.card if isinstance(source, CardTensor) else None
    target = origin if request.device is None else current_machine().card_of(request.device)
    if target is origin:
        with torch._C.DisableTorchFunction():
            dtype = source.dtype if request.dtype is None else request.dtype
            return Tensor.to(
                source, dtype=dtype, copy=request.copy, memory_format=request.memory_format
            )
    if source.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            f"gradients do not cross from device to device here, at {calling_place()}"
        )
    with torch._C.DisableTorchFunction():
        plain = source.held if isinstance(source, CardTensor) else source.detach()
        empty = torch.empty_like(plain, dtype=request.dtype or plain.dtype)
        result = CardTensor(empty, target) if target is not None else empty
        if origin is not None and target is None and request.non_blocking:
            pin(empty)
        transfer(result, source, request.non_blocking)
    return result


def transfer(target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Copy between two devices."""
    from emulated_card.tensors import CardTensor

    if isinstance(target, CardTensor) and isinstance(source, CardTensor):
        _between_cards(target, source)
    elif isinstance(target, CardTensor):
        _to_card(target, source, non_blocking)
    elif isinstance(source, CardTensor):
        _to_host(target, source, non_blocking)


def copy_into(target: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
    """Copy into a tensor, of which two at least one is on a card; a single number of the host needs no copy."""
    from emulated_card.tensors import CardTensor

    on_one_card = (
        isinstance(target, CardTensor)
        and isinstance(source, CardTensor)
        and target.card is source.card
    )
    if on_one_card or (isinstance(target, CardTensor) and not source.dim()):
        assert isinstance(target, CardTensor)
        reads = [source.block] if isinstance(source, CardTensor) else []
        plain = source.held if isinstance(source, CardTensor) else source
        perform(
            target.card,
            aten.copy_.default,
            (target.held, plain),
            {},
            reads=reads,
            writes=[target.block],
        )
    else:
        transfer(target, source, non_blocking)
    return target


def _to_card(target: "CardTensor", source: Tensor, non_blocking: bool) -> None:
    card, pinned = target.card, is_pinned(source)
    if not (
        pinned and non_blocking and card.capture is not None
    ):  # a graph may copy from memory that stays in place
        card.note("copy to card")
    perform(
        card,
        _copy,
        (target.held, source),
        {},
        is_kernel=card.capture is not None,
        writes=[target.block],
    )
    card.stream.use([], [target.block])
    if pinned and non_blocking:
        if card.capture is None:
            card.stream.deliver_later(_unchanged(source))
        else:  # each replay reads that memory anew
            card.capture.record(lambda: card.stream.deliver_later(_unchanged(source)))


def _to_host(target: Tensor, source: "CardTensor", non_blocking: bool) -> None:
    card, asynchronous = source.card, non_blocking and is_pinned(target)
    card.stream.use([source.block], [])
    if not asynchronous:
        card.wait()
        target.copy_(source.held)
        return

    def send() -> None:
        content = source.held.clone()
        poison(target)
        card.stream.deliver_later(lambda: target.copy_(content))

    if card.capture is None:
        card.note("copy to host")
        send()
    else:
        card.capture.touch([source.block], [])
        card.capture.record(send)


def _between_cards(target: "CardTensor", source: "CardTensor") -> None:
    source.card.note("copy between cards")
    if target.card.capture is not None:
        target.card.note("copy between cards")
    target.card.stream.wait_stream(source.card.stream)
    target.held.copy_(source.held)
    target.card.stream.use([source.block], [target.block])
    # torch lets both streams wait for the copy, so that the source may be overwritten after it.
    source.card.stream.wait_stream(target.card.stream)


def _copy(target: Tensor, source: Tensor) -> Tensor:
    return target.copy_(source)


def _unchanged(source: Tensor) -> Any:
    """Return a function that raises RuntimeError if pinned memory was changed while a copy still read it."""
    content, caller = source.clone(), calling_place()

    def check() -> None:
        if not torch.equal(content, source):
            raise RuntimeError(
                f"pinned memory was changed while the copy to the card of {caller} still read it"
            )

    return check
