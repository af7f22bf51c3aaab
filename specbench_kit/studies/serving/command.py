"""`skit simulate` and `skit capacity`: many devices that share one verification server."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    say,
    say_target,
    tell_report,
)
from specbench_kit.core.option import FIRST, Given, OptionValues, WithoutEffect, select_fields
from specbench_kit.serving.options import (
    RECORD,
    CapacityRule,
    OutputOptions,
    PresetOption,
    RecordingOptions,
    ServingOptions,
    SimulationOptions,
)
from specbench_kit.traces.library import DEFAULT_TRACE, SAY_DEFAULT

if TYPE_CHECKING:
    from specbench_kit.papers.experiment import Experiment
    from specbench_kit.studies.serving.kind import ServingStudy
    from specbench_kit.studies.serving.settings import ServingSettings
    from specbench_kit.studies.serving.summary import ServingDescription, ServingSummary


def _recordless(given: OptionValues) -> str:
    """Return that all acceptance is stated, by the options or by the preset that they change."""
    preset = _experiment(given).options if "preset" in given else {}
    acceptance: Any = given.get("acceptance", preset.get("acceptance", (RECORD,)))
    acceptance = (
        (acceptance,) if isinstance(acceptance, str) else acceptance
    )  # Python may give one alone
    words = "with --acceptance" if "acceptance" in given else f"with --preset {given.get('preset')}"
    return "" if RECORD in acceptance else words


def _preset_of(command: str) -> Callable[[OptionValues], str]:
    """Return the case in which the preset is one of another command, whose options count."""

    def case(given: OptionValues) -> str:
        is_other = "preset" in given and _experiment(given).command == command
        return f"with --preset {given['preset']}" if is_other else ""

    return case


def _experiment(given: OptionValues) -> "Experiment":
    from specbench_kit.studies.serving.presets import presets

    return presets.get(str(given["preset"]))


STATED = WithoutEffect(
    _recordless, "nothing is recorded where the acceptance is stated; leave out one of them"
)
LOAD_IS_FOUND = WithoutEffect(
    _preset_of("capacity"),
    "it is a preset of skit capacity, which finds the load; leave out one of them",
)
LOAD_IS_GIVEN = WithoutEffect(
    _preset_of("simulate"),
    "it is a preset of skit simulate, which searches for nothing; leave out one of them",
)


def simulate(
    simulation: Annotated[
        Given[SimulationOptions],
        STATED.of("max_draft"),
        LOAD_IS_FOUND.of("devices", "concurrency", "arrivals_scale"),
    ],
    recorded: Annotated[Given[RecordingOptions], STATED],
    preset: PresetOption,
    output: Annotated[Given[OutputOptions], LOAD_IS_FOUND],
    as_json: JsonOption = False,
) -> None:
    """Run the simulations that the options or the preset describe, and print the result."""
    _run("simulate", {**simulation.values, **output.values}, recorded, preset.preset, as_json)


def capacity(
    serving: Annotated[Given[ServingOptions], STATED.of("max_draft"), FIRST.of("objective")],
    rule: Annotated[Given[CapacityRule], LOAD_IS_GIVEN],
    recorded: Annotated[Given[RecordingOptions], STATED],
    preset: PresetOption,
    as_json: JsonOption = False,
) -> None:
    """Search for the capacity that the options or the preset describe, and print the result."""
    _run("capacity", {**serving.values, **rule.values}, recorded, preset.preset, as_json)


def _run(
    command: str,
    given: Mapping[str, Any],
    recording: Given[RecordingOptions],
    preset_name: str | None,
    as_json: bool,
) -> None:
    """Run `command` with the given options, or the command of a preset with its options below the
    given ones.
    """
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.models.catalogue import resolve_target
    from specbench_kit.serving.events import parse_window
    from specbench_kit.studies.serving.presets import presets
    from specbench_kit.studies.serving.serving_run import NamedPreset, ServingRun
    from specbench_kit.studies.serving.terminal import print_serving

    preset = NamedPreset(preset_name, presets.get(preset_name)) if preset_name is not None else None
    if preset is not None:
        given = {**preset.preset.options, **given}
        command = preset.preset.command
    is_default = "acceptance" not in given and not recording.values and "max_draft" not in given
    if is_default:
        given = {**given, "acceptance": (DEFAULT_TRACE,)}
    recorded = recording.make()
    settings = _settings(given, recorded)
    settings.points()  # an error in the grid is reported before anything is loaded
    if settings.resume:
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(settings.out, command, command_line())
    console = Console(stderr=as_json)
    if is_default:
        say(
            console,
            SAY_DEFAULT.format(
                option="--acceptance", instead="give --target or --acceptance record"
            ),
        )
    dataset = None
    if settings.records:
        answers = f"{recorded.limit} answers to {recorded.dataset} of up to {recorded.max_new_tokens} tokens"
        say(
            console,
            f"recording {answers} first, with target {resolve_target(recorded.target)} and draft "
            f"{recorded.draft} (50 answers take the toy pair about a minute on two cores, a real pair several); give "
            "--acceptance qwen2.5-coder (a pair that the kit has recorded), trace.parquet, a run's folder or "
            "iid:alpha=0.8,length=4 to skip this",
        )
        dataset = load_dataset(recorded, recorded.limit, settings.recording.seed, console)
        say_target(console, recorded.target)
    with ExitStack() as bar:

        def show(description: "ServingDescription", summary: "ServingSummary") -> None:
            bar.close()  # while a bar is shown, all output goes where it is
            print_serving(console, description, summary)

        report = bar.enter_context(stepping_bar())
        run = ServingRun(
            settings=settings, dataset=dataset, chosen=preset, report=report, show=show
        )
        if command == "capacity":
            rule = {**select_fields(CapacityRule, given), "objective": settings.objective}
            study: ServingStudy = run.capacity(CapacityRule(**rule))
        else:
            output = OutputOptions(**select_fields(OutputOptions, given))
            study = run.simulate(
                output.events, parse_window(output.timeline) if output.timeline else None
            )
    tell_report(console, study.folder, study.result, as_json)


def _settings(given: Mapping[str, Any], recorded: RecordingOptions) -> "ServingSettings":
    from specbench_kit.studies.recording.settings import RecordingSettings
    from specbench_kit.studies.serving.settings import ServingSettings

    recording = RecordingSettings(
        seed=given.get("seed", 0),
        argv=command_line(),
        **select_fields(RecordingSettings, asdict(recorded)),
    )
    return ServingSettings(
        **select_fields(ServingSettings, given), recording=recording, argv=command_line()
    )
