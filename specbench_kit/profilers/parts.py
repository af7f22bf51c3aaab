"""The models that a run profiles, each in its role, and the result for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specbench_kit.profilers import workload
from specbench_kit.profilers.base import Form, Profile, Role
from specbench_kit.profilers.fit import Fit
from specbench_kit.profilers.profiled_device import ProfiledDevice
from specbench_kit.profilers.roofline import DRAFT_STEP, VERIFY_STEP
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.subject import Subject, find_draft_subject, find_subject
from specbench_kit.profilers.workload import Configuration
from specbench_kit.runs.folder import slug

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


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A profile without its coefficients, the fit that has them, and further facts about the measurement."""

    profile: Profile
    fit: Fit
    facts: Mapping[str, object] = field(default_factory=dict)


def parts_of(settings: ProfileSettings) -> list[ProfiledPart]:
    """Return the parts that a run profiles: a verifier, or a draft model and its target.

    A verifier is timed on WISP's workload and on wide batches, a pair on the steps of speculative decoding. Only the
    verifier's form has the output layer as a feature of its own.
    """
    target = find_subject(settings.target, "target")
    if settings.draft is None:
        return [ProfiledPart("verifier", "work", target, (*workload.verification(settings.seed), *workload.wide()))]
    draft = find_draft_subject(settings.draft, target)
    return [
        ProfiledPart("drafter", "context", draft, workload.steps(DRAFT_STEP, settings.seed)),
        ProfiledPart("verifier", "context", target, workload.steps(VERIFY_STEP, settings.seed)),
    ]


def name_profile(
    part: ProfiledPart, settings: ProfileSettings, device: ProfiledDevice, weights_hash: str | None = None
) -> str:
    """Return the name of a profile: the user's, or one of model, hash of the weights, device, dtype and role."""
    role = "steps" if (part.role, part.form) == ("verifier", "context") else part.role
    if settings.name is not None:
        return settings.name if settings.draft is None else f"{settings.name}-{role}"
    model = "-".join(filter(None, (part.subject.name, (weights_hash or "")[:HASH_DIGITS])))
    return slug(f"{model}-{device.name}-{SHORT[device.dtype]}-{role}")
