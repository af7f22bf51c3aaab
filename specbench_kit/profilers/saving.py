"""What a profiling run writes: the numbers of its profiles, and the profiles themselves."""

import shutil
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import sums_of
from specbench_kit.profilers.base import DERIVED, Profile
from specbench_kit.profilers.fit import Fit, Observation
from specbench_kit.profilers.loading import data_folder, save
from specbench_kit.profilers.parts import ProfiledDevice, ProfileResult
from specbench_kit.profilers.roofline import judge, roofline_of
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.runs import provenance

SAVED = ("train", "test", "generalisation_gap", "cross_validation", "intervals")
"""The fields of a fit that its profile keeps."""
TIMED_CONTEXT = 512
TIMED_REQUESTS = (1, 8, 16, 32, 64)
TIMED_NEW = (1, 2, 5, 9, 17)
"""The steps that a summary of a derived profile shows: cached tokens, requests, and new tokens of each request."""
TYPICAL_NEW = {"drafter": 1, "verifier": 5}
"""New tokens of the forward that a profile's headline names, as near to it as one was measured."""
NAMED = ("name", "role", "device", "model", "dtype", "source", "hardware", "reference", "software")


def describe_run(
    settings: ProfileSettings, device: ProfiledDevice, models: Mapping[str, JsonObject], time_kind: str
) -> dict[str, Any]:
    """Return the content of `run.json` without the workload."""
    return {
        "command": settings.command,
        "models": models,
        "config": {
            "device": device.name,
            "dtype": device.dtype,
            "runs": settings.runs,
            "budget_s": settings.budget_s,
            "seed": settings.seed,
        },
        "time_kind": time_kind,
        **provenance.collect(settings.argv),
    }


def marked(profile: Profile, disturbed: Sequence[str], *, forced: bool) -> Profile:
    """Return the profile with what disturbed the machine, and with the mark that it may be used all the same."""
    if not disturbed:
        return profile
    fit = {**profile.fit, "disturbed": list(disturbed), **({"forced": True} if forced else {})}
    return structs.replace(profile, fit=fit)


def complete_profile(result: ProfileResult, run: JsonObject, policy: JsonObject) -> Profile:
    """Return the profile of a result with its coefficients, and with the quality of the fit if it was measured."""
    profile = result.profile
    coefficients = dict(result.fit.coefficients)
    if profile.source in DERIVED:
        return structs.replace(profile, coefficients=coefficients)
    described = result.fit.describe()
    facts = {**{name: described[name] for name in SAVED}, **run["workload"][profile.role], **result.facts}
    costs = policy if profile.role == "drafter" else {}
    return structs.replace(profile, coefficients=coefficients, fit=facts, policy=costs)


def summarise_profile(profile: Profile, result: ProfileResult) -> dict[str, object]:
    """Return the numbers of one profile for `summary.json`."""
    verdict = judge(profile)
    roofline = roofline_of(profile)
    return {
        **{name: getattr(profile, name) for name in NAMED},
        **result.fit.describe(),
        **result.facts,
        "limits": {} if isinstance(roofline, str) else roofline.bounds(profile.form),
        "weight_bytes": None if isinstance(roofline, str) else roofline.weight_bytes,
        "verdict": {
            "kind": verdict.kind,
            "reason": verdict.reason,
            "regimes": dict(verdict.regimes),
            "short": verdict.short,
            "coefficients": sorted(verdict.coefficients),
            "slow": dict(verdict.slow),
        },
        "steps": steps(result.fit) if profile.form == "context" else [],
        "times": times(profile) if profile.source in DERIVED else [],
        "typical": None if profile.source in DERIVED else typical_step(profile.role, result.fit),
    }


def times(profile: Profile) -> list[dict[str, object]]:
    """Return the seconds of some steps by a derived profile, the ends of their range, and where each comes from."""
    latency = profile.latency()
    ends = profile.range()
    timed: list[dict[str, object]] = []
    for requests in TIMED_REQUESTS:
        for new in TIMED_NEW:
            sums = sums_of([(new, TIMED_CONTEXT)] * requests)
            timed.append(
                {
                    "requests": requests,
                    "new": new,
                    "seconds": latency.of_sums(sums),
                    "range_s": [end.of_sums(sums) for end in ends] if ends else None,
                    "origin": latency.origin(sums) if isinstance(latency, KernelModel) else "law",
                }
            )
    return timed


def typical_step(role: str, fit: Fit) -> dict[str, object] | None:
    """Return the measured forward that is most like a verification, or a draft step, of one request."""

    def distance(observation: Observation) -> float:
        new, cached = observation.configuration.rows[0]
        few = abs(log(new / TYPICAL_NEW[role]))
        return few + abs(log((1 + cached) / (1 + TIMED_CONTEXT))) + log(len(observation.configuration.rows))

    if not fit.observations:
        return None
    nearest = min(fit.observations, key=distance)
    new, cached = nearest.configuration.rows[0]
    return {"new": new, "cached": cached, "requests": len(nearest.configuration.rows), "seconds": nearest.seconds}


def steps(fit: Fit) -> list[dict[str, object]]:
    """Return the measured and the predicted seconds by new tokens, context and batch size, on the grid of steps."""
    return [
        {
            "new": observation.configuration.rows[0][0],
            "context": observation.configuration.rows[0][1],
            "batch": len(observation.configuration.rows),
            "seconds": observation.seconds,
            "predicted_s": fit.predict(observation.configuration),
        }
        for observation in fit.observations
        if observation.configuration.part == "train"
    ]


def save_profile_as_chosen(profile: Profile, folder: Path, settings: ProfileSettings) -> Path:
    """Save a profile to where the settings say, with its samples from the run's `folder`; return the file.

    Among the user's profiles, one of a disturbed machine gets a name of its own, so that it replaces no other.
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
        raise SkitError(f"cannot write the samples beside {path}: {error.strerror or error}") from error
    return path
