"""One profiling run: measure or derive, fit, judge, save, report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.profilers.derived_run import derive
from specbench_kit.profilers.devices import Device
from specbench_kit.profilers.loading import save
from specbench_kit.profilers.measured_run import Finished, run_measured
from specbench_kit.profilers.part import Part, parts_of
from specbench_kit.profilers.place import Place, find_place
from specbench_kit.profilers.saving import complete, describe_run, keep, summarise
from specbench_kit.profilers.settings import Settings
from specbench_kit.profilers.subject import require_architecture
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.machine.limits import disturbances

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProfilingOutcome:
    """What a run leaves: its folder, what was run, its numbers, and where each role's profile was saved."""

    folder: Path
    run: Fields
    summary: Fields
    saved: Mapping[str, Path]
    doubts: Sequence[str] = ()
    """Why nothing was saved."""


def run_profiling(settings: Settings, report: ProgressCallback) -> ProfilingOutcome:
    """Profile a verifier, or a drafter and its verifier, on a device of this machine or by a data sheet."""
    place = find_place(settings)
    parts = parts_of(settings)
    if place.device is not None:
        finished = run_measured(settings, place, place.device, parts, report)
    else:
        assert place.card is not None
        finished = _run_derived(settings, place, place.card, parts)
    return _finish(settings, finished)


def _run_derived(settings: Settings, place: Place, card: Device, parts: Sequence[Part]) -> Finished:
    shapes = {part.model: (part.subject.name, require_architecture(part.subject)) for part in parts}
    models = {role: {"name": name, "parameters": one.parameters} for role, (name, one) in shapes.items()}
    run = describe_run(settings, place, models, "modelled")
    run["workload"] = {part.role: {"configurations": len(part.configurations), "factor": 1.0} for part in parts}
    run["device_memory_bytes"] = card.times(settings.cards).memory_bytes
    results = derive(settings, place, card, parts, run["started_at"])
    names = "-".join(part.subject.name for part in parts)
    folder = unused_folder(settings.out, settings.command, f"{names}-{card.name}", run["config"])
    write_text(folder / "run.json", to_json(run))
    return Finished(folder, run, results)


def _finish(settings: Settings, finished: Finished) -> ProfilingOutcome:
    """Judge, save and report; the summary comes last, since a folder without one can be gone on with."""
    from specbench_kit.reports.profile.plots import write_plots
    from specbench_kit.reports.profile.report import render

    folder, run, policy = finished.folder, finished.run, finished.policy
    profiles = [complete(result, run, policy) for result in finished.results]
    pairs = list(zip(profiles, finished.results, strict=True))
    summary = {"profiles": {profile.role: summarise(profile, result) for profile, result in pairs}, "policy": policy}
    for profile, result in pairs:
        write_plots(folder / "plots", profile, result.fit)
        save(folder / f"{profile.name}.toml", profile)
    doubts = [] if settings.force else disturbances(run.get("machine", []))
    saved: dict[str, Path] = {} if doubts else {profile.role: keep(profile, folder, settings) for profile in profiles}
    write_text(folder / "report.md", render(run, summary))
    write_text(folder / "summary.json", to_json(summary))
    return ProfilingOutcome(folder, run, summary, saved, doubts)
