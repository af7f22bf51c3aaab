"""What a run profiles: models in their roles, and what comes of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench_kit.profilers import workload
from specbench_kit.profilers.base import Form, Profile, Role
from specbench_kit.profilers.fit import Fit
from specbench_kit.profilers.profiled_device import ProfiledDevice
from specbench_kit.profilers.roofline import DRAFT_STEP, VERIFY_STEP
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.subject import Subject, find_subject
from specbench_kit.profilers.workload import Configuration
from specbench_kit.runs.folder import slug

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
HASH_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ProfiledPart:
    """One model in one role, and what it is timed on."""

    role: Role
    form: Form
    subject: Subject
    configurations: Sequence[Configuration]

    @property
    def model(self) -> str:
        """The model's place in the pair."""
        return "draft" if self.role == "drafter" else "target"


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A profile without its numbers, the fit that has them, and what else is to be told of the measurement."""

    profile: Profile
    fit: Fit
    told: Mapping[str, Any] = field(default_factory=dict)


def parts_of(settings: ProfileSettings) -> list[ProfiledPart]:
    """A verifier on WISP's workload and wide batches, or a draft and its target on steps of speculative decoding.

    The verifier's times are fitted with the output layer as a feature of its own.
    """
    target = find_subject(settings.target, "target")
    if settings.draft is None:
        return [ProfiledPart("verifier", "work", target, (*workload.verification(settings.seed), *workload.wide()))]
    draft = find_subject(settings.draft, "draft")
    return [
        ProfiledPart("drafter", "context", draft, workload.steps(DRAFT_STEP, settings.seed)),
        ProfiledPart("verifier", "context", target, workload.steps(VERIFY_STEP, settings.seed)),
    ]


def name_profile(
    part: ProfiledPart, settings: ProfileSettings, place: ProfiledDevice, weights: str | None = None
) -> str:
    """What a profile is called; unless named, real weights are told apart by their hash."""
    role = "steps" if (part.role, part.form) == ("verifier", "context") else part.role
    if settings.name is not None:
        return settings.name if settings.draft is None else f"{settings.name}-{role}"
    model = "-".join(filter(None, (part.subject.name, (weights or "")[:HASH_DIGITS])))
    return slug(f"{model}-{place.name}-{SHORT[place.dtype]}-{role}")
