"""What `skit simulate` and `skit capacity` share: settings and presets, and how a run is told."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specbench_kit.cli.common import command_line, load_dataset, say, tell_report
from specbench_kit.core.option import select_fields
from specbench_kit.serving.options import CapacityRule, OutputOptions, PresetOption, RecordingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.papers.experiment import Experiment
    from specbench_kit.studies.serving.serving_run import NamedPreset, ServingOutcome, ServingRun
    from specbench_kit.studies.serving.settings import ServingSettings


def find_preset(name: str | None) -> "NamedPreset | None":
    """The preset of that name."""
    from specbench_kit.studies.serving.presets.base import presets
    from specbench_kit.studies.serving.serving_run import NamedPreset

    if name is None:
        return None
    return NamedPreset(name, presets.get(name))


def make_settings(
    given: Mapping[str, Any], recorded: RecordingOptions, preset: "Experiment | None" = None
) -> "ServingSettings":
    """Options that were given, over those of the preset, over the defaults."""
    from specbench_kit.studies.bench.settings import RECORDED_TOGETHER, BenchSettings
    from specbench_kit.studies.serving.settings import ServingSettings

    chosen = select_fields(ServingSettings, {**(preset.options if preset else {}), **given})
    argv = command_line()
    recording = BenchSettings(
        methods=("autoregressive",),
        batch_size=RECORDED_TOGETHER,
        seed=chosen.get("seed", 0),
        argv=argv,
        **select_fields(BenchSettings, asdict(recorded)),
    )
    return ServingSettings(**chosen, recording=recording, argv=argv)


def run_command(
    command: str, given: Mapping[str, Any], recorded: RecordingOptions, published: PresetOption, as_json: bool
) -> None:
    """Run a command with its options, or the command of a preset."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.serving.serving_run import ServingRun

    chosen = find_preset(published.preset)
    settings = make_settings(given, recorded, chosen.preset if chosen else None)
    settings.points()
    console = Console(stderr=as_json)
    if settings.records:
        say(console, _announcement(recorded))
    dataset = _load(settings, recorded, console) if settings.records else None
    with stepping_bar() as report:
        run = ServingRun(settings=settings, dataset=dataset, chosen=chosen, report=report)
        options = {**(chosen.preset.options if chosen else {}), **given}
        outcome = _start(chosen.preset.command if chosen else command, run, options)
    _print(console, outcome, as_json)


def _announcement(asked: RecordingOptions) -> str:
    """What is computed where no acceptance is given, how long that takes, and what spares it."""
    which = f"{asked.limit} answers of {asked.dataset} of up to {asked.max_new_tokens} tokens"
    return (
        f"no --acceptance: {which} are recorded first with target {asked.target} and draft {asked.draft} (of the "
        "bundled pair 50 take about a minute on two cores); --acceptance trace.parquet, a run's folder or "
        "iid:alpha=0.8,length=4 spares that"
    )


def _start(command: str, run: "ServingRun", options: Mapping[str, Any]) -> "ServingOutcome":
    from specbench_kit.serving.events import parse_window

    if command == "capacity":
        return run.capacity(
            CapacityRule(**{**select_fields(CapacityRule, options), "objective": run.settings.objective})
        )
    kept = OutputOptions(**select_fields(OutputOptions, options))
    return run.simulate(kept.events, parse_window(kept.timeline) if kept.timeline else None)


def _load(settings: "ServingSettings", asked: RecordingOptions, console: "Console") -> "LoadedDataset":
    return load_dataset(asked, asked.limit, settings.recording.seed, console)


def _print(console: "Console", outcome: "ServingOutcome", as_json: bool) -> None:
    from specbench_kit.reports.serving.terminal import print_serving

    print_serving(console, outcome.run, outcome.summary)
    tell_report(console, outcome.folder, outcome.summary, as_json)
