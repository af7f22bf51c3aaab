"""A profiling run on a device of this machine, which is watched while each part of a profile is
timed.

A stop rule is timed too: its cost per drafted token is that of the draft statistics, and of a
predictor's score.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from statistics import mean, median, pstdev

import torch
from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import convert, decode
from specbench_kit.decoding.clock import MeasuringClock, read_processor_time
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.memory import free_bytes
from specbench_kit.predictors import artefact, library
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import BYTES
from specbench_kit.profilers.fit import Fit, Observation, TooFewConfigurations, fit
from specbench_kit.profilers.measurement import (
    MeasurementGaps,
    Samples,
    TimingRig,
    choose_factor,
    hardware_text,
    measure,
)
from specbench_kit.profilers.parts import (
    MeasurementFacts,
    ProfiledDevice,
    ProfiledPart,
    ProfileResult,
    Steadiness,
    WorkloadScale,
    name_profile,
)
from specbench_kit.profilers.saving import PolicyCosts, describe_run
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.steps import measure_statistics
from specbench_kit.profilers.subject import Subject
from specbench_kit.profilers.workload import Configuration
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.folder import (
    Defining,
    to_json,
    unfinished_folder,
    unused_folder,
    write_text,
)
from specbench_kit.runs.machine.limits import MachineReadings
from specbench_kit.runs.machine.probe import Probe, probe_here
from specbench_kit.runs.machine.watch import LaneTimes, Watch

STEADY = 0.05
"""Coefficient of variation over runs that a timing should stay below (WISP, Appendix C)."""


class _StartedRun(Struct):
    """The fields of `run.json` that a run reads again when it is resumed."""

    started_at: str
    models: dict[str, ModelDescription]
    workload: dict[str, WorkloadScale]
    machine: list[MachineReadings] = []


class _Defined(Struct):
    """The field of `run.json` that holds what a run and its resumption share."""

    defining: Defining = {}


@dataclass(frozen=True, slots=True)
class FinishedMeasurement:
    """The folder of a run, the content of its `run.json`, the workload and the result of each part,
    and the cost of a stop rule.
    """

    folder: Path
    run: RunFields
    workload: Mapping[str, WorkloadScale]
    results: Sequence[ProfileResult]
    policy: PolicyCosts = field(default_factory=PolicyCosts)


def run_measured(
    settings: ProfileSettings,
    profiled: ProfiledDevice,
    device: torch.device,
    parts: Sequence[ProfiledPart],
    progress: ProgressCallback,
) -> FinishedMeasurement:
    """Measure every part within the budget; timings are on disk as soon as they are taken."""
    clock = MeasuringClock(device)
    probe = probe_here()
    with clock.running():
        rigs = []
        models = {}
        for part in parts:
            _require_memory(part.subject, device, profiled.dtype)
            loaded = part.subject.load(device, profiled.dtype)
            models[part.model] = part.subject.describe(loaded)
            rigs.append(TimingRig(loaded, clock, settings.seed, settings.runs))
        folder, run = _open_folder(settings, profiled, parts, rigs, models)
        started = convert(_StartedRun, run)
        results = []
        # Loading does not count: the budget is for what a longer one measures better.
        started_s = clock.now_s()
        for number, (part, rig) in enumerate(zip(parts, rigs, strict=True), 1):
            weights_hash = started.models[part.model].hash
            profile = profile_without_fit(
                settings, profiled, part, started.started_at, weights_hash
            )
            samples = Samples.open(folder / str(profile.samples))
            factor = started.workload[part.role].factor
            # The deadline of a part is its share of the budget after the deadline of the part
            # before it.
            deadline_s = started_s + settings.budget_s * number / len(parts)
            with machine_recorded(probe, rig, part, samples, partial(_add_readings, folder, run)):
                gaps = measure_part(rig, part, factor, samples, deadline_s, progress)
            try:
                results.append(
                    ProfileResult(profile, *fit_part(part, factor, samples, gaps, settings.seed))
                )
            except TooFewConfigurations as error:
                raise SkitError(
                    f"{error}; give a longer --budget, and keep what there is with --resume"
                ) from error
        policy = PolicyCosts()
        if settings.draft is not None:
            hashes = [models[role].hash for role in ("target", "draft")]
            pair = PairHashes(*map(str, hashes)) if all(hashes) else None
            policy = measure_policy(min(rig.vocabulary for rig in rigs), str(device), pair)
    return FinishedMeasurement(folder, run, started.workload, results, policy)


def _require_memory(subject: Subject, device: torch.device, dtype: str) -> None:
    if subject.architecture is None:
        return
    needed = float(subject.architecture.parameters * BYTES[dtype])
    free = free_bytes(device)
    if device.type == "cpu" and dtype == "float32":
        needed *= 2  # the fast executor packs the weights into a layout of its own
    if needed > free:
        raise SkitError(
            f"{subject.name} in {dtype} takes {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free on {device}: "
            "use a smaller model or --dtype bfloat16, or derive a profile for another device with --gpu NAME"
        )


def _open_folder(
    settings: ProfileSettings,
    profiled: ProfiledDevice,
    parts: Sequence[ProfiledPart],
    rigs: Sequence[TimingRig],
    models: Mapping[str, ModelDescription],
) -> tuple[Path, RunFields]:
    """Return a new folder, or the one that is to be resumed, and the content of its `run.json`."""
    defining = {
        "models": [[model.name, model.hash] for model in models.values()],
        "hardware": hardware_text(rigs[0].device),
        "dtype": profiled.dtype,
        "seed": settings.seed,
        "runs": settings.runs,
    }
    if settings.resume:
        return _unfinished(settings.out, settings.command, defining)
    names = "-".join(str(model.name) for model in models.values())
    folder = unused_folder(settings.out, settings.command, names, defining)
    budget_s = settings.budget_s / len(parts)
    run: RunFields = {
        **describe_run(settings, profiled, models, "measured"),
        "defining": defining,
    }
    run["workload"] = {
        part.role: {
            "configurations": len(part.configurations),
            "factor": choose_factor(rig, part.configurations, budget_s, ends_there=True),
        }
        for part, rig in zip(parts, rigs, strict=True)
    }
    write_text(folder / "run.json", to_json(run))
    return folder, run


def _unfinished(out: Path, command: str, defining: Defining) -> tuple[Path, RunFields]:
    """Return the newest folder of such a run that has no summary yet, and the content of its
    `run.json`.
    """
    folder = unfinished_folder(out, command, defining, "run.json", _defining_of)
    path = folder / "run.json"
    try:
        text = path.read_text(encoding="utf-8")
        decode(_StartedRun, text)
        return folder, json.loads(text)
    except ValueError as error:
        raise SkitError(f"{path}: {error}; start a new run without --resume") from error


def _defining_of(folder: Path) -> Defining:
    """Return what defines the run of a folder; nothing if its file does not say."""
    try:
        return decode(_Defined, (folder / "run.json").read_bytes()).defining
    except (OSError, ValueError):
        return {}


def _add_readings(folder: Path, run: RunFields, readings: MachineReadings) -> None:
    run["machine"] = [*convert(_StartedRun, run).machine, readings]
    write_text(folder / "run.json", to_json(run))


def profile_without_fit(
    settings: ProfileSettings,
    profiled: ProfiledDevice,
    part: ProfiledPart,
    started_at: str,
    weights_hash: str | None,
) -> Profile:
    """Return the profile of a part without its coefficients."""
    assert profiled.device is not None
    name = name_profile(part, settings, profiled, weights_hash)
    return Profile(
        name=name,
        role=part.role,
        device=profiled.name,
        model=part.subject.name,
        dtype=profiled.dtype,
        source="measured",
        form=part.form,
        coefficients={},
        date=started_at,
        hardware=hardware_text(profiled.device),
        model_hash=weights_hash,
        cores=torch.get_num_threads() if profiled.device.type == "cpu" else 1,
        samples=f"{name}.csv",
        architecture=None if part.subject.is_card else part.subject.architecture,
    )


def measure_part(
    rig: TimingRig,
    part: ProfiledPart,
    factor: float,
    samples: Samples,
    deadline_s: float,
    progress: ProgressCallback,
) -> MeasurementGaps:
    """Time the configurations of a part, at lengths times `factor`; return what was left out."""
    scaled = [configuration.scaled(factor) for configuration in part.configurations]
    return measure(rig, scaled, samples, deadline_s, f"timing the {part.role}", progress)


def fit_part(
    part: ProfiledPart, factor: float, samples: Samples, gaps: MeasurementGaps, seed: int
) -> tuple[Fit, MeasurementFacts]:
    """Return the fit of a part, and facts on the measurement: how steady the timings were, and what
    was left out.
    """
    scaled = [configuration.scaled(factor) for configuration in part.configurations]
    fitted = fit(part.form, observe(scaled, samples), seed)
    variations = sorted(
        observation.variation
        for observation in fitted.observations
        if observation.variation is not None
    )
    steadiness = Steadiness(0)
    if variations:
        unsteady = sum(variation > STEADY for variation in variations)
        steadiness = Steadiness(len(variations), median(variations), variations[-1], unsteady)
    return fitted, MeasurementFacts(steadiness, gaps.skipped, gaps.cut_off)


def observe(configurations: Sequence[Configuration], samples: Samples) -> list[Observation]:
    """Return the median over runs of each run's median, for every configuration that was timed."""
    runs = samples.runs()
    observations = []
    for configuration in configurations:
        if configuration.name in runs:
            seconds = [median(repeats) for repeats in runs[configuration.name]]
            variation = pstdev(seconds) / mean(seconds) if len(seconds) > 1 else None
            observations.append(Observation(configuration, median(seconds), variation))
    return observations


SAMPLES = 64


def measure_policy(vocabulary: int, device: str, pair: PairHashes | None) -> PolicyCosts:
    """Return the seconds per token; without `predictor` and its time if none was trained for the
    pair.
    """
    statistics_s = measure_statistics(vocabulary, device)
    folders = library.find(pair) if pair is not None else []
    if not folders:
        return PolicyCosts(statistics_s=statistics_s, per_token_s=statistics_s)
    predictor = artefact.load(folders[0], pair=pair)
    random = Random(0)
    rows = [_random_row(random, len(predictor.features)) for _ in range(SAMPLES)]
    predictor_s = time_scores(predictor.scorer, rows)["median"]
    return PolicyCosts(statistics_s, predictor.family, predictor_s, statistics_s + predictor_s)


def _random_row(random: Random, features: int) -> list[float]:
    return [random.random() for _ in range(features)]


@contextmanager
def machine_recorded(
    probe: Probe,
    rig: TimingRig,
    part: ProfiledPart,
    samples: Samples,
    keep: Callable[[MachineReadings], None],
) -> Iterator[None]:
    """Pass the readings taken while one part is timed to `keep`, also if the timing fails."""
    watch = Watch(probe, rig.device)
    before = read_processor_time()
    try:
        yield
    finally:
        steps = [list(chain(*runs)) for runs in samples.runs().values()]
        keep(watch.end({f"the {part.role}": LaneTimes(read_processor_time().since(before), steps)}))
