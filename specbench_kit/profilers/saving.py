"""What a profiling run writes: the numbers of its profiles, and the profiles themselves."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.fit import Fit
from specbench_kit.profilers.loading import data_folder, save
from specbench_kit.profilers.parts import ProfileResult
from specbench_kit.profilers.profiled_device import ProfiledDevice
from specbench_kit.profilers.roofline import judge, roofline_of
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.runs import provenance

Fields = dict[str, Any]
KEPT = ("train", "test", "generalisation_gap", "cross_validation", "intervals")
"""Of a fit, what its profile says."""
NAMED = ("name", "role", "device", "model", "dtype", "source", "hardware", "reference", "software")


def describe_run(settings: ProfileSettings, place: ProfiledDevice, models: Fields, time_kind: str) -> Fields:
    """The content of `run.json`, less the workload."""
    config: Fields = {"device": place.name, "dtype": place.dtype, "runs": settings.runs}
    config |= {"budget_s": settings.budget_s, "seed": settings.seed}
    return {
        "command": settings.command,
        "models": models,
        "config": config,
        "time_kind": time_kind,
        **provenance.collect(settings.argv),
    }


def complete_profile(result: ProfileResult, run: Mapping[str, Any], policy: Mapping[str, Any]) -> Profile:
    """The profile with its numbers."""
    found, profile = result.fit.describe(), result.profile
    if profile.source == "roofline":
        return structs.replace(profile, coefficients=found["coefficients"])
    facts = {**{name: found[name] for name in KEPT}, **run["workload"][profile.role], **result.told}
    costs = policy if profile.role == "drafter" else {}
    return structs.replace(profile, coefficients=found["coefficients"], fit=facts, policy=costs)


def summarise_profile(profile: Profile, result: ProfileResult) -> Fields:
    """The numbers of one profile, ready for JSON."""
    verdict, roofline = judge(profile), roofline_of(profile)
    return {
        **{name: getattr(profile, name) for name in NAMED},
        **result.fit.describe(),
        **result.told,
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
    }


def steps(found: Fit) -> list[Fields]:
    """Seconds by new tokens, context and batch size, on the grid of steps."""
    grid = [one for one in found.observations if one.configuration.part == "train"]
    return [
        {
            "new": one.configuration.rows[0][0],
            "context": one.configuration.rows[0][1],
            "batch": len(one.configuration.rows),
            "seconds": one.seconds,
            "predicted_s": found.predict(one.configuration),
        }
        for one in grid
    ]


def save_profile_as_chosen(profile: Profile, folder: Path, settings: ProfileSettings) -> Path:
    """Save to where the settings say, with the raw samples beside it; returns the file."""
    path, chosen = data_folder() / f"{profile.name}.toml", settings.save_to
    if chosen is not None:
        path = chosen if settings.draft is None else chosen / path.name
    kept = structs.replace(profile, samples=f"{path.stem}.csv") if profile.samples else profile
    save(path, kept)
    if profile.samples:
        try:
            shutil.copyfile(folder / profile.samples, path.with_suffix(".csv"))
        except OSError as error:
            raise SkitError(f"cannot write the samples beside {path}: {error.strerror or error}") from error
    return path
