"""A profiling run without the device: by measured kernels of such a card, or by the law from its
data sheet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import RoundedModel
from specbench_kit.profilers.base import Corner, Form, Profile, Role, Source
from specbench_kit.profilers.devices import Device, Interconnect, bundled_device, find_interconnect
from specbench_kit.profilers.engine_costs import (
    FAST,
    SLOW,
    TYPICAL,
    find_engine_costs,
    launched_for,
)
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
from specbench_kit.profilers.software import KERNELS, find_software
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
    card: Device,
    members: int,
    subject: Subject,
    role: Role = "verifier",
    dtype: str = AUTO,
    software: str = KERNELS,
) -> Profile:
    """Return the profile of a model on so many cards of one kind, which share it by tensor
    parallelism.
    """
    interconnect = interconnect_of(card).name if members > 1 else None
    settings = VerifierProfileSettings(
        target=subject.name,
        gpu=card.name,
        cards=members,
        interconnect=interconnect,
        dtype=dtype,
        software=software,
    )
    return derived_profile(settings, card, subject, role)


def interconnect_of(card: Device) -> Interconnect:
    """Return what connects several such cards that hold one model."""
    return find_interconnect((INTERCONNECTS | ALIKE).get(card.name, "pcie4"))


def _derive(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart, date: str
) -> tuple[Profile, _Derivation]:
    kernels = _kernels(settings, device, card, part)
    derived = (
        _by_kernels(settings, kernels, part) if kernels else _by_law(settings, device, card, part)
    )
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


@dataclass(frozen=True, slots=True)
class _Hosts:
    """The host beside a card, as an engine's typically is, and at both ends of what it may take."""

    typical: Host
    fast: Host
    slow: Host


def _hosts(settings: ProfileSettings, part: ProfiledPart) -> _Hosts:
    """Return the host that the settings state, or that of the engine whose kernels are assumed.

    A software card other than that of the kernels has its host in its own numbers.
    """
    stated = Host(settings.host_s or 0.0, settings.host_request_s or 0.0, settings.overlap)
    if not settings.is_default_software:
        slow = stated if stated.step_s else stated.with_step_s(STEP_RANGE_S[1])
        return _Hosts(stated, stated, slow)
    costs = find_engine_costs(settings.engine)
    step_s = costs.step_s
    if part.role == "drafter":
        step_s = costs.launch_s(launched_for(part.subject.name))

    def host(end: int) -> Host:
        return Host(
            step_s[end] if settings.host_s is None else settings.host_s,
            costs.request_s[end] if settings.host_request_s is None else settings.host_request_s,
            settings.overlap,
        )

    return _Hosts(host(TYPICAL), host(FAST), host(SLOW))


def _by_kernels(
    settings: ProfileSettings, kernels: MeasuredKernels, part: ProfiledPart
) -> _Derivation:
    hosts, (low, high) = _hosts(settings, part), kernels.spread
    coefficients = _coefficients(hosts.typical)
    return _Derivation(
        source="silicon",
        form="kernels",
        model=KernelModel.of(kernels.kernels, coefficients),
        coefficients=coefficients,
        reference=f"the sum of measured kernels under {kernels.engine} ({kernels.source}), not measured as a whole",
        software=f"{kernels.engine}-kernels",
        fast=Corner(low, _others(coefficients, _coefficients(hosts.fast))),
        slow=Corner(high, _others(coefficients, _coefficients(hosts.slow))),
    )


def _coefficients(host: Host) -> dict[str, float]:
    return {
        "host_request_s": host.request_s,
        "host_s": host.step_s,
        "overlap": host.overlap,
    }


def _by_law(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, part: ProfiledPart
) -> _Derivation:
    software = find_software(settings.software)
    members = settings.cards
    hosts = _hosts(settings, part)
    interconnect = find_interconnect(settings.interconnect) if settings.interconnect else None
    shapes = require_architecture(part.subject)
    ep = settings.expert_parallel
    if ep:
        shapes.require_shared_experts(members, part.subject.name)
    roofline = Roofline(card.combined(members), shapes, device.dtype, members)
    estimate = partial(roofline.estimate, software, members, expert_parallel=ep)
    model = estimate(interconnect, hosts.typical)
    slow = estimate(interconnect.slow if interconnect else None, hosts.slow)
    fast = estimate(interconnect, hosts.fast)
    coefficients = model.coefficients
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
        fast=Corner(low, _others(coefficients, fast.coefficients)),
        slow=Corner(high, _others(coefficients, slow.coefficients)),
    )


def _others(coefficients: Mapping[str, float], at_end: Mapping[str, float]) -> dict[str, float]:
    """Return the coefficients at an end that differ from those given."""
    return {name: value for name, value in at_end.items() if value != coefficients[name]}
