"""The device that is profiled: one of this machine, or the data sheet of one that this machine lacks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.devices import CPU, Device, bundled_device, device_reported_as, find_device
from specbench_kit.profilers.settings import ProfileSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """A device with its card. `name` is the card's name, or what the driver reports if there is no card.

    `device` is torch's, None if this machine has no such device.
    """

    name: str
    dtype: str
    device: "torch.device | None"
    card: Device | None


def find_profiled_device(settings: ProfileSettings) -> ProfiledDevice:
    """Return the device that the settings ask for; the dtype `auto` becomes the one that the device serves in.

    Raise SkitError if a measurement is required and this machine has no such device.
    """
    import torch

    from specbench_kit.models.pair import resolve_device

    if settings.gpu is None:
        device = resolve_device(settings.device)
        card = bundled_device(CPU) if device.type == CPU else device_reported_as(torch.cuda.get_device_name(device))
        name = card.name if card else torch.cuda.get_device_name(device)
        return ProfiledDevice(name, _dtype(settings.dtype, device), device, card)
    card = find_device(settings.gpu)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    matching = [torch.device("cuda", index) for index, name in enumerate(names) if name in card.reported]
    if card.is_cpu:
        matching = [torch.device(CPU)]
    if matching:
        return ProfiledDevice(card.name, _dtype(settings.dtype, matching[0]), matching[0], card)
    if settings.require_measured:
        raise SkitError(
            f"--require-measured: no {card.title} is here ({', '.join(names) or 'torch sees no CUDA device'}); run "
            "this where there is one, or leave the option out for a profile derived from the data sheet"
        )
    dtype = card.default_dtype if settings.dtype == "auto" else settings.dtype
    card.peak(dtype)  # which refuses a dtype that the device cannot compute in
    return ProfiledDevice(card.name, dtype, None, card)


def _dtype(name: str, device: "torch.device") -> str:
    from specbench_kit.models.pair import resolve_dtype

    return str(resolve_dtype(name, device)).removeprefix("torch.")
