"""A profiling run on a device that is here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import BYTES
from specbench_kit.profilers.fit import Fit, Observation, TooFewConfigurations, fit
from specbench_kit.profilers.machine_readings import machine_recorded
from specbench_kit.profilers.measurement import (
    MeasurementGaps,
    TimingRig,
    choose_factor,
    free_bytes,
    hardware_text,
    measure,
)
from specbench_kit.profilers.parts import ProfiledPart, ProfileResult, name_profile
from specbench_kit.profilers.policy import measure_policy
from specbench_kit.profilers.profiled_device import ProfiledDevice
from specbench_kit.profilers.samples import Samples
from specbench_kit.profilers.saving import describe_run
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.subject import Subject
from specbench_kit.profilers.workload import Configuration
from specbench_kit.runs.folder import run_key, to_json, unused_folder, write_text
from specbench_kit.runs.machine.probe import probe_here

Fields = dict[str, Any]

STEADY = 0.05
"""Coefficient of variation over runs that a timing should stay below (WISP, Appendix C)."""


@dataclass(frozen=True, slots=True)
class FinishedMeasurement:
    """What a measurement leaves."""

    folder: Path
    run: Fields
    results: Sequence[ProfileResult]
    policy: Fields = field(default_factory=dict)


def run_measured(
    settings: ProfileSettings,
    place: ProfiledDevice,
    device: torch.device,
    parts: Sequence[ProfiledPart],
    report: ProgressCallback,
) -> FinishedMeasurement:
    """Measure every part within the budget; samples are on disk as soon as they are made."""
    clock, probe = MeasuringClock(device), probe_here()
    with clock.running():
        stands, models = _load(settings, parts, device, place.dtype, clock)
        folder, run = _open(settings, place, parts, stands, models)
        results = []
        for number, (part, stand) in enumerate(zip(parts, stands, strict=True), 1):
            profile = profile_without_fit(settings, place, part, run)
            samples = Samples.open(folder / str(profile.samples))
            factor, deadline_s = run["workload"][part.role]["factor"], settings.budget_s * number / len(parts)
            with machine_recorded(probe, stand, part, samples, partial(_note_machine, folder, run)):
                measured = measure_part(stand, part, factor, samples, deadline_s, report)
            results.append(ProfileResult(profile, *_fit(part, factor, samples, measured, settings.seed)))
        policy = {} if settings.draft is None else _policy(stands, models, device)
    return FinishedMeasurement(folder, run, results, policy)


def _load(
    settings: ProfileSettings, parts: Sequence[ProfiledPart], device: torch.device, dtype: str, clock: MeasuringClock
) -> tuple[list[TimingRig], Fields]:
    """Every model in memory, and what a run records of it."""
    stands, models = [], {}
    for part in parts:
        _require_memory(part.subject, device, dtype)
        loaded = part.subject.load(device, dtype)
        models[part.model] = part.subject.describe(loaded)
        stands.append(TimingRig(loaded, clock, settings.seed, settings.runs))
    return stands, models


def _require_memory(subject: Subject, device: torch.device, dtype: str) -> None:
    if subject.architecture is None:
        return
    needed, free = float(subject.architecture.parameters * BYTES[dtype]), free_bytes(device)
    if device.type == "cpu" and dtype == "float32":
        needed *= 2  # the fast executor packs the weights into a layout of its own
    if needed > free:
        raise SkitError(
            f"{subject.name} in {dtype} takes {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free on {device}: "
            "use a smaller model or --dtype bfloat16, or derive a profile for another device with --gpu NAME"
        )


def _open(
    settings: ProfileSettings,
    place: ProfiledDevice,
    parts: Sequence[ProfiledPart],
    stands: Sequence[TimingRig],
    models: Fields,
) -> tuple[Path, Fields]:
    """A new folder, or the one that is to be gone on with, and the content of its `run.json`."""
    defining = {
        "models": [[model["name"], model.get("hash")] for model in models.values()],
        "hardware": hardware_text(stands[0].device),
        "dtype": place.dtype,
        "seed": settings.seed,
        "runs": settings.runs,
    }
    if settings.resume:
        return _unfinished(settings.out, settings.command, run_key(defining))
    names = "-".join(str(model["name"]) for model in models.values())
    folder = unused_folder(settings.out, settings.command, names, defining)
    run = describe_run(settings, place, models, "measured")
    budget_s = settings.budget_s / len(parts)
    factors = [choose_factor(stand, part.configurations, budget_s) for part, stand in zip(parts, stands, strict=True)]
    run["workload"] = {
        part.role: {"configurations": len(part.configurations), "factor": factor}
        for part, factor in zip(parts, factors, strict=True)
    }
    write_text(folder / "run.json", to_json(run))
    return folder, run


def _unfinished(out: Path, command: str, key: str) -> tuple[Path, Fields]:
    """The newest folder of such a run that has no summary yet."""
    folders = sorted(file.parent for file in out.glob(f"*-{command}-*-{key}*/run.json"))
    unfinished = [folder for folder in folders if not (folder / "summary.json").exists()]
    if not unfinished:
        raise SkitError(f"{out} holds no unfinished run with these settings: start one without --resume")
    run: Fields = json.loads((unfinished[-1] / "run.json").read_text(encoding="utf-8"))
    return unfinished[-1], run


def profile_without_fit(
    settings: ProfileSettings, place: ProfiledDevice, part: ProfiledPart, run: Mapping[str, Any]
) -> Profile:
    """All but the numbers."""
    assert place.device is not None
    weights = run["models"][part.model].get("hash")
    name = name_profile(part, settings, place, weights)
    return Profile(
        name=name,
        role=part.role,
        device=place.name,
        model=part.subject.name,
        dtype=place.dtype,
        source="measured",
        form=part.form,
        coefficients={},
        date=run["started_at"],
        hardware=hardware_text(place.device),
        model_hash=weights,
        cores=torch.get_num_threads() if place.device.type == "cpu" else 1,
        samples=f"{name}.csv",
        architecture=None if part.subject.is_card else part.subject.architecture,
    )


def _note_machine(folder: Path, run: Fields, block: Fields) -> None:
    run["machine"] = [*run.get("machine", []), block]
    write_text(folder / "run.json", to_json(run))


def measure_part(
    stand: TimingRig, part: ProfiledPart, factor: float, samples: Samples, deadline_s: float, report: ProgressCallback
) -> MeasurementGaps:
    """Time all of a part; what was left out is returned."""
    scaled = [one.scaled(factor) for one in part.configurations]
    return measure(stand, scaled, samples, deadline_s, f"timing the {part.role}", report)


def _fit(
    part: ProfiledPart, factor: float, samples: Samples, measured: MeasurementGaps, seed: int
) -> tuple[Fit, Fields]:
    """As `fit_part`, with what to do where too little was measured."""
    try:
        return fit_part(part, factor, samples, measured, seed)
    except TooFewConfigurations as error:
        raise SkitError(f"{error}; give a longer --budget, and keep what there is with --resume") from error


def fit_part(
    part: ProfiledPart, factor: float, samples: Samples, measured: MeasurementGaps, seed: int
) -> tuple[Fit, Fields]:
    """The fit, and what else is to be told of the measurement."""
    found = fit(part.form, observe([one.scaled(factor) for one in part.configurations], samples), seed)
    return found, _told(measured, found)


def observe(configurations: Sequence[Configuration], samples: Samples) -> list[Observation]:
    """The median over runs of each run's median, for what was measured."""
    runs = samples.runs()
    observations = []
    for one in configurations:
        if one.name in runs:
            seconds = [median(repeats) for repeats in runs[one.name]]
            variation = pstdev(seconds) / mean(seconds) if len(seconds) > 1 else None
            observations.append(Observation(one, median(seconds), variation))
    return observations


def _told(measured: MeasurementGaps, found: Fit) -> Fields:
    """How steady the timings were, and what was left out."""
    variations = sorted(one.variation for one in found.observations if one.variation is not None)
    steadiness: Fields = {"count": len(variations)}
    if variations:
        unsteady = sum(variation > STEADY for variation in variations)
        steadiness |= {"median": median(variations), "worst": variations[-1], "above_limit": unsteady}
    return {"variation": steadiness, "skipped": measured.skipped, "cut_off": measured.cut_off}


def _policy(stands: Sequence[TimingRig], models: Fields, device: torch.device) -> Fields:
    hashes = [models[role].get("hash") for role in ("target", "draft")]
    pair = PairHashes(*map(str, hashes)) if all(hashes) else None
    return measure_policy(min(stand.vocabulary for stand in stands), str(device), pair)
