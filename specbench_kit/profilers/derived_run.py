"""A profiling run by the data sheet of a device that is not here."""

from collections.abc import Sequence

from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import Device, known_device
from specbench_kit.profilers.fit import Observation, fit
from specbench_kit.profilers.part import Part, Result, name_profile
from specbench_kit.profilers.place import Place
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.settings import Settings
from specbench_kit.profilers.subject import require_architecture


def derive(settings: Settings, place: Place, card: Device, parts: Sequence[Part], date: str) -> list[Result]:
    """Run each part's workload through the roofline and fit what comes out."""
    return [_derive(settings, place, card, part, date) for part in parts]


def _derive(settings: Settings, place: Place, card: Device, part: Part, date: str) -> Result:
    shapes = require_architecture(part.subject)
    roofline = Roofline(card, shapes, place.dtype)
    observations = [Observation(one, roofline.seconds(one.rows)) for one in part.configurations]
    profile = Profile(
        name=f"{name_profile(part, settings, place)}{'' if settings.name else '-roofline'}",
        role=part.role,
        device=card.name,
        model=part.subject.name,
        dtype=place.dtype,
        source="roofline",
        form=part.form,
        coefficients={},
        reference=f"derived from the data sheet of {card.title}, not measured",
        date=date,
        architecture=None if part.subject.is_card else shapes,
        device_card=None if known_device(card.name) == card else card,
    )
    return Result(profile, fit(part.form, observations, settings.seed))
