"""A profiling run by the data sheet of a device that this machine lacks."""

from dataclasses import asdict

from specbench_kit.decoding.latency import HostedModel
from specbench_kit.profilers.base import Form, Profile
from specbench_kit.profilers.devices import Device, bundled_device
from specbench_kit.profilers.fit import Observation, evaluated
from specbench_kit.profilers.interconnects import find_interconnect
from specbench_kit.profilers.parts import ProfiledPart, ProfileResult, name_profile
from specbench_kit.profilers.profiled_device import ProfiledDevice
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.software import find_software
from specbench_kit.profilers.subject import require_architecture


def derive(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart, date: str
) -> ProfileResult:
    """Return the profile of a part whose coefficients are its roofline, at the shares that its software achieves."""
    shapes, software, members = require_architecture(part.subject), find_software(settings.software), settings.cards
    interconnect = find_interconnect(settings.interconnect) if settings.interconnect else None
    model = Roofline(card.combined(members), shapes, device.dtype).estimate(software, members, interconnect)
    together = f", {members} of them over {interconnect.title}" if interconnect else ""
    name = name_profile(part, settings, device)
    if not settings.name:
        name += f"-tp{members}" if members > 1 else ""
        name += "-roofline" if settings.is_fused else f"-{settings.software}-roofline"
    form: Form = "hosted" if isinstance(model, HostedModel) else "work"
    profile = Profile(
        name=name,
        role=part.role,
        device=card.name,
        model=part.subject.name,
        dtype=device.dtype,
        source="roofline",
        form=form,
        coefficients={},
        reference=f"derived from the data sheet of {card.title}{together}, not measured",
        date=date,
        software=software.name,
        tensor_parallel=members,
        architecture=None if part.subject.is_card else shapes,
        device_card=None if bundled_device(card.name) == card else card,
    )
    observations = [
        Observation(configuration, model.seconds(configuration.rows)) for configuration in part.configurations
    ]
    return ProfileResult(profile, evaluated(form, asdict(model), observations))
