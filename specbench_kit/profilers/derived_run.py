"""A profiling run without the device: by measured kernels of such a card, or by the law from its
data sheet.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import RoundedModel
from specbench_kit.profilers.base import Corner, Form, Profile, Role, Source
from specbench_kit.profilers.devices import Device, Interconnect, bundled_device, find_interconnect
from specbench_kit.profilers.fit import Observation, evaluated
from specbench_kit.profilers.parts import ProfiledDevice, ProfiledPart, ProfileResult, name_profile
from specbench_kit.profilers.roofline import STEP_RANGE_S, Host, Roofline
from specbench_kit.profilers.settings import AUTO, SILICON, ProfileSettings, VerifierProfileSettings
from specbench_kit.profilers.silicon import (
    ALIKE,
    DTYPE,
    INTERCONNECTS,
    MeasuredKernels,
    find_kernels,
    measured_kernels,
)
from specbench_kit.profilers.software import find_software
from specbench_kit.profilers.subject import Subject, require_architecture


@dataclass(frozen=True, slots=True)
class _Derivation:
    """The latency model of a derived profile, its origin, and both ends of its range."""

    source: Source
    form: Form
    model: RoundedModel | KernelModel
    coefficients: Mapping[str, float]
    reference: str
    software: str
    fast: Corner
    slow: Corner


def derive(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart, date: str
) -> ProfileResult:
    """Return the profile of a part by measured kernels where there are such, else by the law from
    the data sheet.
    """
    profile, derived = _derive(settings, device, card, part, date)
    observations = [
        Observation(configuration, derived.model.seconds(configuration.rows))
        for configuration in part.configurations
    ]
    return ProfileResult(
        profile, evaluated(derived.form, derived.coefficients, observations, derived.model)
    )


def derived_profile(
    settings: ProfileSettings, card: Device, subject: Subject, role: Role, date: str = ""
) -> Profile:
    """Return the profile of a model on a card, or on several that share it, without times of a
    workload.
    """
    device = ProfiledDevice(
        card.name, card.default_dtype if settings.dtype == "auto" else settings.dtype, None, card
    )
    return _derive(settings, device, card, ProfiledPart(role, "work", subject, ()), date)[0]


def shared_profile(
    card: Device, members: int, subject: Subject, role: Role = "verifier", dtype: str = AUTO
) -> Profile:
    """Return the profile of a model on so many cards of one kind, which share it by tensor
    parallelism.
    """
    interconnect = interconnect_of(card).name if members > 1 else None
    settings = VerifierProfileSettings(
        target=subject.name, gpu=card.name, cards=members, interconnect=interconnect, dtype=dtype
    )
    return derived_profile(settings, card, subject, role)


def interconnect_of(card: Device) -> Interconnect:
    """Return what connects several such cards that hold one model."""
    return find_interconnect((INTERCONNECTS | ALIKE).get(card.name, "pcie4"))


def _derive(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart, date: str
) -> tuple[Profile, _Derivation]:
    kernels = _kernels(settings, device, card, part)
    derived = _by_kernels(settings, kernels) if kernels else _by_law(settings, device, card, part)
    name = name_profile(part, settings, device)
    if not settings.name:
        name += (
            f"-{'ep' if settings.expert_parallel else 'tp'}{settings.cards}"
            if settings.cards > 1
            else ""
        )
        name += "" if settings.is_default_software else f"-{settings.software}"
        name += "" if settings.is_default_engine else f"-{settings.engine}"
        name += f"-{derived.source}"
    profile = Profile(
        name=name,
        role=part.role,
        device=card.name,
        model=part.subject.name,
        dtype=device.dtype,
        source=derived.source,
        form=derived.form,
        coefficients=derived.coefficients,
        reference=derived.reference,
        date=date,
        software=derived.software,
        tensor_parallel=settings.cards,
        architecture=None if part.subject.is_card else require_architecture(part.subject),
        device_card=None if bundled_device(card.name) == card else card,
        kernels=kernels.kernels if kernels else None,
        fast=derived.fast,
        slow=derived.slow,
    )
    return profile, derived


def _kernels(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart
) -> MeasuredKernels | None:
    """Return the measured kernels that the settings ask for; by default those that come with the
    kit, if there are.
    """
    if (
        settings.origin not in (AUTO, SILICON)
        or not settings.is_default_software
        or settings.expert_parallel
    ):
        return None
    is_measured = device.dtype == DTYPE and (
        settings.cards == 1 or INTERCONNECTS.get(card.name) == settings.interconnect
    )
    if (settings.origin == SILICON or not settings.is_default_engine) and not is_measured:
        over = (
            "" if settings.cards == 1 else f" over {INTERCONNECTS.get(card.name, 'one card alone')}"
        )
        raise SkitError(
            f"--from silicon: kernels on {card.name} were measured in {DTYPE}{over}, not as asked for"
        )
    bundled = None
    if is_measured and part.subject.is_card:
        bundled = find_kernels(part.subject.name, card.name, settings.engine, settings.cards)
    if bundled or (settings.origin == AUTO and settings.is_default_engine):
        return bundled
    shapes = require_architecture(part.subject)
    return measured_kernels(part.subject.name, shapes, card.name, settings.engine, settings.cards)


def _by_kernels(settings: ProfileSettings, kernels: MeasuredKernels) -> _Derivation:
    host, (low, high) = settings.host, kernels.spread
    coefficients = {
        "host_request_s": host.request_s,
        "host_s": host.step_s,
        "overlap": host.overlap,
    }
    return _Derivation(
        source="silicon",
        form="kernels",
        model=KernelModel(kernels.kernels, **coefficients),
        coefficients=coefficients,
        reference=f"the sum of measured kernels under {kernels.engine} ({kernels.source}), not measured as a whole",
        software=f"{kernels.engine}-kernels",
        fast=Corner(low, {"host_s": _least_host_s(host)}),
        slow=Corner(high, {"host_s": _most_host_s(host)}),
    )


def _by_law(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart
) -> _Derivation:
    software = find_software(settings.software)
    members = settings.cards
    host = settings.host
    interconnect = find_interconnect(settings.interconnect) if settings.interconnect else None
    shapes = require_architecture(part.subject)
    ep = settings.expert_parallel
    if ep:
        shapes.require_shared_experts(members, part.subject.name)
    roofline = Roofline(card.combined(members), shapes, device.dtype, members)
    estimate = partial(roofline.estimate, software, members, expert_parallel=ep)
    model = estimate(interconnect, host)
    slow = estimate(
        interconnect.slow if interconnect else None, host.with_step_s(_most_host_s(host))
    )
    fast = estimate(interconnect, host.with_step_s(_least_host_s(host)))
    coefficients = {name: float(value) for name, value in asdict(model).items()}
    low, high = software.on(card.name).spread or (1.0, 1.0)
    together = f", {members} of them over {interconnect.title}" if interconnect else ""
    together += ", each with experts of its own" if ep else ""
    unusual = " and ".join(shapes.unusual_parts)
    beyond = f"; the analytic model was not fitted to {unusual}" if unusual else ""
    return _Derivation(
        source="roofline",
        form="rounded",
        model=model,
        coefficients=coefficients,
        reference=f"derived from the data sheet of {card.title}{together}, not measured{beyond}",
        software=software.name,
        fast=Corner(low, _changes(coefficients, fast)),
        slow=Corner(high, _changes(coefficients, slow)),
    )


def _changes(coefficients: Mapping[str, float], model: RoundedModel) -> dict[str, float]:
    """Return the coefficients of a model that differ from those given."""
    return {name: value for name, value in asdict(model).items() if value != coefficients[name]}


def _least_host_s(host: Host) -> float:
    """Return the host's seconds per step at the fast end: none, unless the user has stated them."""
    return host.step_s or STEP_RANGE_S[0]


def _most_host_s(host: Host) -> float:
    return host.step_s or STEP_RANGE_S[1]
