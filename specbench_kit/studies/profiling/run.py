"""One profiling run: measure or derive, fit, validate, save, report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.models.description import ModelDescription
from specbench_kit.profilers.derived_run import derive
from specbench_kit.profilers.devices import Device
from specbench_kit.profilers.loading import save
from specbench_kit.profilers.measured_run import FinishedMeasurement, run_measured
from specbench_kit.profilers.parts import (
    ProfiledDevice,
    ProfiledPart,
    WorkloadScale,
    find_profiled_device,
    parts_of,
)
from specbench_kit.profilers.saving import (
    ProfilingSummary,
    complete_profile,
    describe_run,
    marked,
    save_profile_as_chosen,
    summarise_profile,
)
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.subject import require_architecture
from specbench_kit.reports.study import finish
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.runs.machine.limits import disturbances, read_machine

if TYPE_CHECKING:
    from specbench_kit.studies.profiling.kind import ProfilingStudy


@dataclass(frozen=True, slots=True)
class ProfilingOutcome:
    """A profiling run, and the saved profile of each role.

    `doubts` say what disturbed the machine, for which reason the saved profiles are used only where they are named.
    """

    study: "ProfilingStudy"
    saved: Mapping[str, Path]
    doubts: Sequence[str] = ()


def run_profiling(settings: ProfileSettings, report: ProgressCallback) -> ProfilingOutcome:
    """Profile a verifier, or a drafter and its verifier, on a device of this machine or by a data
    sheet.
    """
    device = find_profiled_device(settings)
    settings.require_options_of(measured=device.device is not None)
    parts = parts_of(settings)
    if device.device is not None:
        return _finish(settings, run_measured(settings, device, device.device, parts, report))
    assert device.card is not None
    return _finish(settings, _derive(settings, device, device.card, parts))


def _derive(
    settings: ProfileSettings, device: ProfiledDevice, card: Device, parts: Sequence[ProfiledPart]
) -> FinishedMeasurement:
    models = {
        part.model: ModelDescription(
            name=part.subject.name,
            parameters=require_architecture(part.subject).parameters,
        )
        for part in parts
    }
    run = describe_run(settings, device, models, "modelled")
    workload: dict[str, WorkloadScale] = {
        part.role: WorkloadScale(len(part.configurations), 1.0) for part in parts
    }
    run["workload"] = to_builtins(workload)
    run["device_memory_bytes"] = card.combined(settings.cards).memory_bytes
    results = [derive(settings, device, card, part, str(run["started_at"])) for part in parts]
    names = "-".join(part.subject.name for part in parts)
    folder = unused_folder(settings.out, settings.command, f"{names}-{card.name}", run["config"])
    write_text(folder / "run.json", to_json(run))
    return FinishedMeasurement(folder, run, workload, results)


def _finish(settings: ProfileSettings, finished: FinishedMeasurement) -> ProfilingOutcome:
    """Save profiles and reports; a folder without a summary can be resumed."""
    from specbench_kit.studies.profiling.kind import BY_COMMAND
    from specbench_kit.studies.profiling.report import write_plots

    folder = finished.folder
    run = finished.run
    policy = finished.policy
    disturbed = disturbances(read_machine(run.get("machine")))
    profiles = [
        marked(
            complete_profile(result, finished.workload[result.profile.role], policy),
            disturbed,
            forced=settings.force,
        )
        for result in finished.results
    ]
    pairs = list(zip(profiles, finished.results, strict=True))
    summary = ProfilingSummary(
        {profile.role: summarise_profile(profile, result) for profile, result in pairs}, policy
    )
    for profile, result in pairs:
        write_plots(folder / "plots", profile, result.fit)
        save(folder / f"{profile.name}.toml", profile)
    saved: dict[str, Path] = {
        profile.role: save_profile_as_chosen(profile, folder, settings) for profile in profiles
    }
    study = finish(BY_COMMAND[settings.command], folder, run, summary)
    return ProfilingOutcome(study, saved, () if settings.force else disturbed)
