"""A profiling run by the data sheet of a device that is not here."""

from collections.abc import Sequence
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
    settings: ProfileSettings, place: ProfiledDevice, card: Device, parts: Sequence[ProfiledPart], date: str
) -> list[ProfileResult]:
    """Evaluate each part's roofline: the profile is the roofline itself, at the shares that its software reaches."""
    return [_derive(settings, place, card, part, date) for part in parts]


def _derive(
    settings: ProfileSettings, place: ProfiledDevice, card: Device, part: ProfiledPart, date: str
) -> ProfileResult:
    shapes, software, members = require_architecture(part.subject), find_software(settings.software), settings.cards
    over = find_interconnect(settings.interconnect) if settings.interconnect else None
    model = Roofline(card.combined(members), shapes, place.dtype).estimate(software, members, over)
    together = f", {members} of them over {over.title}" if over else ""
    form: Form = "hosted" if isinstance(model, HostedModel) else "work"
    profile = Profile(
        name=f"{name_profile(part, settings, place)}{'' if settings.name else _ending(settings)}",
        role=part.role,
        device=card.name,
        model=part.subject.name,
        dtype=place.dtype,
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
    observations = [Observation(one, model.seconds(one.rows)) for one in part.configurations]
    return ProfileResult(profile, evaluated(form, asdict(model), observations))


def _ending(settings: ProfileSettings) -> str:
    """What sets a derived profile's name apart."""
    cards = f"-tp{settings.cards}" if settings.cards > 1 else ""
    return f"{cards}-roofline" if settings.is_fused else f"{cards}-{settings.software}-roofline"
