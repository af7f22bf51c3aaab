"""What a profiling run writes: the summary with the numbers of its profiles, and the profiles
themselves.
"""

import shutil
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field, structs, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import stated
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import sums_of
from specbench_kit.models.description import ModelDescription
from specbench_kit.profilers.base import DERIVED, Profile, Role
from specbench_kit.profilers.fit import Fit, FitDescription, Observation
from specbench_kit.profilers.loading import data_folder, save
from specbench_kit.profilers.parts import (
    MeasurementFacts,
    ProfiledDevice,
    ProfileResult,
    Steadiness,
    WorkloadScale,
)
from specbench_kit.profilers.roofline import LimitVerdict, judge, roofline_of
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields

SAVED = ("train", "test", "generalisation_gap", "cross_validation", "intervals")
"""The fields of a fit that its profile keeps."""
TIMED_CONTEXT = 512
TIMED_REQUESTS = (1, 8, 16, 32, 64)
TIMED_NEW = (1, 2, 5, 9, 17)
"""The steps that a summary of a derived profile shows: cached tokens, requests, and new tokens of
each request.
"""
TYPICAL_NEW = {"drafter": 1, "verifier": 5}
"""New tokens of the forward that a profile's headline names, as near to it as one was measured."""


class PolicyCosts(Struct, omit_defaults=True):
    """What a stop rule costs; known only where a drafter was measured."""

    statistics_s: Annotated[
        float | None,
        Meta(
            description="seconds per drafted token of the statistics that a rule looks at; null if not "
            "measured"
        ),
    ] = None
    predictor: Annotated[
        str | None,
        Meta(
            description="family of the predictor that was trained for the pair; null if there is none"
        ),
    ] = None
    predictor_s: Annotated[
        float | None, Meta(description="median seconds of one of its scores; null if there is none")
    ] = None
    per_token_s: Annotated[
        float | None,
        Meta(description="seconds per drafted token of both together; null if not measured"),
    ] = None


class MeasuredStep(Struct):
    """A measured and predicted step of several requests that are alike."""

    new: Annotated[int, Meta(description="new tokens of each request")]
    context: Annotated[int, Meta(description="cached tokens of each request")]
    batch: Annotated[int, Meta(description="requests")]
    seconds: Annotated[float, Meta(description="measured seconds")]
    predicted_s: Annotated[float, Meta(description="predicted seconds")]


class DerivedTime(Struct):
    """A step by a derived profile, whose requests are alike and have 512 cached tokens."""

    requests: Annotated[int, Meta(description="requests")]
    new: Annotated[int, Meta(description="new tokens of each request")]
    seconds: Annotated[float, Meta(description="seconds of the step")]
    range_s: Annotated[
        tuple[float, float] | None,
        Meta(
            description="seconds at the fast and the slow end of the profile's range; null if it has none"
        ),
    ]
    origin: Annotated[
        str,
        Meta(
            description="whether the time was measured, lies between measured ones or beyond them, or follows "
            "from a law"
        ),
    ]


class TypicalStep(Struct):
    """A measured forward that is like a verification, or a draft step, of one request."""

    new: Annotated[int, Meta(description="new tokens of each request")]
    cached: Annotated[int, Meta(description="cached tokens of each request")]
    requests: Annotated[int, Meta(description="requests")]
    seconds: Annotated[float, Meta(description="measured seconds")]


class ProfileSummary(FitDescription, kw_only=True):
    """One profile: what was profiled, how well it was fitted, and what its device could do at best."""

    name: Annotated[str, Meta(description="name of the profile")]
    role: Annotated[Role, Meta(description="which model it times: drafter or verifier")]
    device: Annotated[str, Meta(description="name of the card, or of the device")]
    model: Annotated[str, Meta(description="name of the model")]
    dtype: Annotated[str, Meta(description="number format of the weights")]
    source: Annotated[
        str,
        Meta(
            description="where its times come from: measured, published, roofline (a data sheet), silicon "
            "(measured kernels) or calibrated (a server's log)"
        ),
    ]
    hardware: Annotated[str, Meta(description="the machine in words; empty if it is not stated")]
    reference: Annotated[
        str, Meta(description="source of what was not measured; empty if it is not stated")
    ]
    software: Annotated[
        str, Meta(description="software whose speed a derived profile assumes; empty for others")
    ] = ""
    variation: Annotated[Steadiness, Meta(description="how much timings vary from run to run")] = (
        field(default_factory=lambda: Steadiness(0))
    )
    skipped: Annotated[
        list[str], Meta(description="names of configurations that did not fit the memory")
    ] = field(default_factory=list)
    cut_off: Annotated[int, Meta(description="timings that the budget cut off")] = 0
    limits: Annotated[
        dict[str, float],
        Meta(
            description="physical bounds of the coefficients, by name; empty if the device's limit is not "
            "known"
        ),
    ]
    weight_bytes: Annotated[
        float | None,
        Meta(description="bytes of all weights; null if the device's limit is not known"),
    ]
    verdict: Annotated[LimitVerdict, Meta(description="comparison with the physical limit")]
    steps: Annotated[
        list[MeasuredStep],
        Meta(
            description="measured and predicted steps; empty unless the profile is one of a pair that was "
            "measured"
        ),
    ]
    times: Annotated[
        list[DerivedTime], Meta(description="steps by a derived profile; empty for others")
    ]
    typical: Annotated[
        TypicalStep | None,
        Meta(
            description="the measured step most like a verification, or a draft step, of one request; null of "
            "a derived profile"
        ),
    ] = None

    @property
    def is_derived(self) -> bool:
        """Return whether nothing was measured."""
        return self.source in DERIVED


class ProfilingSummary(Struct):
    """The content of a profiling run's `summary.json`."""

    profiles: Annotated[dict[str, ProfileSummary], Meta(description="the profile of each role")]
    policy: Annotated[PolicyCosts, Meta(description="what a stop rule costs")]


def describe_run(
    settings: ProfileSettings,
    device: ProfiledDevice,
    models: Mapping[str, ModelDescription],
    time_kind: str,
) -> RunFields:
    """Return the content of `run.json` without the workload."""
    run: RunFields = {
        "command": settings.command,
        "models": stated(models),
        "config": {
            "device": device.name,
            "dtype": device.dtype,
            "runs": settings.runs,
            "budget_s": settings.budget_s,
            "seed": settings.seed,
        },
        "time_kind": time_kind,
    }
    return {**run, **provenance.collect(settings.argv)}


def marked(profile: Profile, disturbed: Sequence[str], *, forced: bool) -> Profile:
    """Return the profile with what disturbed the machine, and with the mark that it may be used all
    the same.
    """
    if not disturbed:
        return profile
    fit = {**profile.fit, "disturbed": list(disturbed), **({"forced": True} if forced else {})}
    return structs.replace(profile, fit=fit)


def complete_profile(
    result: ProfileResult, workload: WorkloadScale, policy: PolicyCosts
) -> Profile:
    """Return the profile of a result with its coefficients, and with the quality of the fit if it
    was measured.
    """
    profile = result.profile
    coefficients = dict(result.fit.coefficients)
    if profile.source in DERIVED:
        return structs.replace(profile, coefficients=coefficients)
    described = to_builtins(result.fit.describe())
    measurement = to_builtins(result.facts)
    facts = {
        **{name: described[name] for name in SAVED},
        **to_builtins(workload),
        **measurement,
    }
    costs = to_builtins(policy) if profile.role == "drafter" else {}
    return structs.replace(profile, coefficients=coefficients, fit=facts, policy=costs)


def summarise_profile(profile: Profile, result: ProfileResult) -> ProfileSummary:
    """Return the numbers of one profile for `summary.json`."""
    roofline = roofline_of(profile)
    facts = result.facts or MeasurementFacts()
    return ProfileSummary(
        **structs.asdict(result.fit.describe()),
        name=profile.name,
        role=profile.role,
        device=profile.device,
        model=profile.model,
        dtype=profile.dtype,
        source=profile.source,
        hardware=profile.hardware,
        reference=profile.reference,
        software=profile.software,
        variation=facts.variation,
        skipped=facts.skipped,
        cut_off=facts.cut_off,
        limits={} if isinstance(roofline, str) else dict(roofline.bounds(profile.form)),
        weight_bytes=None if isinstance(roofline, str) else roofline.weight_bytes,
        verdict=judge(profile),
        steps=steps(result.fit) if profile.form == "context" else [],
        times=times(profile) if profile.source in DERIVED else [],
        typical=None if profile.source in DERIVED else typical_step(profile.role, result.fit),
    )


def times(profile: Profile) -> list[DerivedTime]:
    """Return the seconds of some steps by a derived profile, the ends of their range, and where
    each comes from.
    """
    latency = profile.latency()
    ends = profile.range()
    timed = []
    for requests in TIMED_REQUESTS:
        for new in TIMED_NEW:
            sums = sums_of([(new, TIMED_CONTEXT)] * requests)
            range_s = (ends[0].of_sums(sums), ends[1].of_sums(sums)) if ends else None
            origin = latency.origin(sums) if isinstance(latency, KernelModel) else "law"
            timed.append(DerivedTime(requests, new, latency.of_sums(sums), range_s, origin))
    return timed


def typical_step(role: str, fit: Fit) -> TypicalStep | None:
    """Return the measured forward that is most like a verification, or a draft step, of one
    request.
    """

    def distance(observation: Observation) -> float:
        new, cached = observation.configuration.rows[0]
        few = abs(log(new / TYPICAL_NEW[role]))
        return (
            few
            + abs(log((1 + cached) / (1 + TIMED_CONTEXT)))
            + log(len(observation.configuration.rows))
        )

    if not fit.observations:
        return None
    nearest = min(fit.observations, key=distance)
    new, cached = nearest.configuration.rows[0]
    return TypicalStep(new, cached, len(nearest.configuration.rows), nearest.seconds)


def steps(fit: Fit) -> list[MeasuredStep]:
    """Return the measured and the predicted seconds by new tokens, context and batch size, on the
    grid of steps.
    """
    grid = [
        observation for observation in fit.observations if observation.configuration.part == "train"
    ]
    measured = []
    for observation in grid:
        rows = observation.configuration.rows
        new, context = rows[0]
        predicted_s = fit.predict(observation.configuration)
        measured.append(MeasuredStep(new, context, len(rows), observation.seconds, predicted_s))
    return measured


def save_profile_as_chosen(profile: Profile, folder: Path, settings: ProfileSettings) -> Path:
    """Save a profile to where the settings say, with its samples from the run's `folder`; return
    the file.

    Among the user's profiles, one of a disturbed machine gets a name of its own, so that it
    replaces no other.
    """
    if profile.must_be_named:
        profile = structs.replace(profile, name=f"{profile.name}-disturbed")
    path = data_folder() / f"{profile.name}.toml"
    if settings.save_to is not None:
        path = settings.save_to if settings.draft is None else settings.save_to / path.name
    if not profile.samples:
        save(path, profile)
        return path
    save(path, structs.replace(profile, samples=f"{path.stem}.csv"))
    try:
        shutil.copyfile(folder / profile.samples, path.with_suffix(".csv"))
    except OSError as error:
        raise SkitError(
            f"cannot write the samples beside {path}: {error.strerror or error}"
        ) from error
    return path
