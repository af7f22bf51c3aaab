"""Where a profile comes from: a device of this machine, or the data sheet of one that is not here."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.devices import CPU, Device, bundled_device, device_reported_as, find_device
from specbench_kit.profilers.settings import ProfileSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """`name` is the card's, or what the driver calls a device that has none.

    `device` is None where the device of the card is not in this machine.
    """

    name: str
    dtype: str
    device: "torch.device | None"
    card: Device | None


def find_profiled_device(settings: ProfileSettings) -> ProfiledDevice:
    """The device that is asked for, or its card where it is not here; dtype `auto` is what it serves in."""
    from specbench_kit.models.pair import resolve_device

    if settings.gpu is None:
        device = resolve_device(settings.device)
        card = _card_of(device)
        return ProfiledDevice(card.name if card else _reported(device), _dtype(settings.dtype, device), device, card)
    card = find_device(settings.gpu)
    here = _device_of(card)
    if here is not None:
        return ProfiledDevice(card.name, _dtype(settings.dtype, here), here, card)
    if settings.require_measured:
        raise SkitError(
            f"--require-measured: no {card.title} is here ({_present()}); run this where there is one, "
            "or leave the option out for a profile derived from the data sheet"
        )
    dtype = card.default_dtype if settings.dtype == "auto" else settings.dtype
    card.peak(dtype)
    return ProfiledDevice(card.name, dtype, None, card)


def _dtype(wanted: str, device: "torch.device") -> str:
    from specbench_kit.models.pair import resolve_dtype

    return str(resolve_dtype(wanted, device)).removeprefix("torch.")


def _card_of(device: "torch.device") -> Device | None:
    return bundled_device(CPU) if device.type == CPU else device_reported_as(_reported(device))


def _device_of(card: Device) -> "torch.device | None":
    import torch

    if card.is_cpu:
        return torch.device(CPU)
    return next((device for device in _cuda_devices() if _reported(device) in card.reported), None)


def _cuda_devices() -> "list[torch.device]":
    import torch

    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def _reported(device: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(device)


def _present() -> str:
    return ", ".join(map(_reported, _cuda_devices())) or "torch sees no CUDA device"
