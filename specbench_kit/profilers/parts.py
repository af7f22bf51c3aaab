"""What a run profiles: a device, the models in their roles, and the result for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Count, Number
from specbench_kit.profilers import workload
from specbench_kit.profilers.base import Form, Profile, Role
from specbench_kit.profilers.devices import (
    CPU,
    Device,
    bundled_device,
    device_reported_as,
    find_device,
)
from specbench_kit.profilers.roofline import DRAFT_STEP, VERIFY_STEP
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.subject import Subject, find_draft_subject, find_subject
from specbench_kit.profilers.workload import Configuration
from specbench_kit.runs.folder import slug

if TYPE_CHECKING:
    import torch

    from specbench_kit.profilers.fit import Fit


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """A device with its card. `name` is the card's name, or what the driver reports if there is no
    card.

    `device` is torch's, None if this machine has no such device.
    """

    name: str
    dtype: str
    device: "torch.device | None"
    card: Device | None


def find_profiled_device(settings: ProfileSettings) -> ProfiledDevice:
    """Return the device that the settings ask for; the dtype `auto` becomes the one that the device
    serves in.

    Raise SkitError if a measurement is required and this machine has no such device.
    """
    import torch

    from specbench_kit.models.pair import resolve_device

    if settings.gpu is None:
        device = resolve_device(settings.device)
        card = (
            bundled_device(CPU)
            if device.type == CPU
            else device_reported_as(torch.cuda.get_device_name(device))
        )
        name = card.name if card else torch.cuda.get_device_name(device)
        return ProfiledDevice(name, _dtype(settings.dtype, device), device, card)
    card = find_device(settings.gpu)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    matching = [
        torch.device("cuda", index) for index, name in enumerate(names) if name in card.reported
    ]
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


SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
HASH_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ProfiledPart:
    """One model in one role, and the configurations that it is timed on."""

    role: Role
    form: Form
    subject: Subject
    configurations: Sequence[Configuration]

    @property
    def model(self) -> str:
        """The model's name within the pair: `draft` or `target`."""
        return "draft" if self.role == "drafter" else "target"


class WorkloadScale(Struct, frozen=True):
    """The workload of a part."""

    configurations: Annotated[Count, Meta(description="number of configurations")]
    factor: Annotated[
        Number, Meta(description="factor that the lengths of their requests are multiplied by")
    ]


class Steadiness(Struct, omit_defaults=True):
    """How much timings of the same configuration vary from run to run, as coefficients of
    variation.
    """

    count: Annotated[int, Meta(description="configurations that were timed in several runs")]
    median: Annotated[
        float | None,
        Meta(
            description="median coefficient of variation (standard deviation / mean); null without such "
            "configurations"
        ),
    ] = None
    worst: Annotated[
        float | None,
        Meta(description="largest coefficient of variation; null without such configurations"),
    ] = None
    above_limit: Annotated[
        int | None,
        Meta(
            description="configurations with a coefficient of variation above 5%; null without such "
            "configurations"
        ),
    ] = None


class MeasurementFacts(Struct):
    """How steady the timings of a measured profile were, and what it lacks: configurations, and
    timings cut off.
    """

    variation: Steadiness = field(default_factory=lambda: Steadiness(0))
    skipped: list[str] = []
    cut_off: int = 0


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A profile without its coefficients, the fit that has them, and facts about the measurement if
    there was one.
    """

    profile: Profile
    fit: "Fit"
    facts: MeasurementFacts | None = None


def parts_of(settings: ProfileSettings) -> list[ProfiledPart]:
    """Return the parts that a run profiles: a verifier, or a draft model and its target.

    A verifier is timed on WISP's workload and on wide batches, a pair on the steps of speculative
    decoding. Only the verifier's form has the output layer as a feature of its own.
    """
    target = find_subject(settings.target, "target")
    if settings.draft is None:
        return [
            ProfiledPart(
                "verifier",
                "work",
                target,
                (*workload.verification(settings.seed), *workload.wide()),
            )
        ]
    draft = find_draft_subject(settings.draft, target)
    return [
        ProfiledPart("drafter", "context", draft, workload.steps(DRAFT_STEP, settings.seed)),
        ProfiledPart("verifier", "context", target, workload.steps(VERIFY_STEP, settings.seed)),
    ]


def name_profile(
    part: ProfiledPart,
    settings: ProfileSettings,
    device: ProfiledDevice,
    weights_hash: str | None = None,
) -> str:
    """Return the name of a profile: the user's, or one of model, hash of the weights, device, dtype
    and role.
    """
    role = "steps" if (part.role, part.form) == ("verifier", "context") else part.role
    if settings.name is not None:
        return settings.name if settings.draft is None else f"{settings.name}-{role}"
    model = "-".join(filter(None, (part.subject.name, (weights_hash or "")[:HASH_DIGITS])))
    return slug(f"{model}-{device.name}-{SHORT[device.dtype]}-{role}")
