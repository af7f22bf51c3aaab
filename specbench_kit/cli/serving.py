"""What `skit simulate` and `skit capacity` share: their options, presets, and how a run is told."""

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench_kit.cli.common import load_dataset, tell_report
from specbench_kit.cli.options import DEPLOYMENT, OUTPUT, RUN
from specbench_kit.errors import SkitError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.serving.presets.base import Preset
    from specbench_kit.serving.run import Chosen, Outcome
    from specbench_kit.serving.settings import Settings

LOAD, ESTIMATOR, SIMULATION, RECORDING = "Load", "Estimator", "Simulation", "Recording a trace"
LIMIT = 50
"""Prompts that take about a minute to record on two cores."""
EACH = "Once for all, or once for each --system."

PresetOption = Annotated[
    str | None,
    typer.Option(help="A published experiment from `skit list presets`; other options change it.", rich_help_panel=RUN),
]
SystemOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A name from `skit list systems`; may be given several times.", show_default="wisp", rich_help_panel=RUN
    ),
]
SchedulerOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"name or name:key=value,... from `skit list schedulers`. {EACH}", show_default="own", rich_help_panel=RUN
    ),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(help=f"Drafting: name or name:key=value,.... {EACH}", show_default="own", rich_help_panel=RUN),
]
AcceptanceOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A trace of `skit record`, the folder of a run, iid:alpha=0.8,length=4, positions:rates=0.8-0.7-0.6, or "
        f"record. {EACH}",
        show_default="record",
        rich_help_panel=RUN,
    ),
]
LabelOption = Annotated[
    list[str] | None, typer.Option(help="What to call each system in the report.", rich_help_panel=RUN)
]
DeploymentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--deployment",
        help=f"A name from `skit list deployments`, or a .toml file. {EACH}",
        show_default="wisp",
        rich_help_panel=DEPLOYMENT,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="KEY=VALUE replaces a field of the deployments (link.rtt_s=0.04); may be given several times.",
        rich_help_panel=DEPLOYMENT,
    ),
]
KvOption = Annotated[
    str | None,
    typer.Option(
        "--kv-tokens",
        help="Room for KV on the server: a number of tokens, unlimited, or auto for what its memory leaves.",
        show_default="auto",
        rich_help_panel=DEPLOYMENT,
    ),
]
MaxBatchOption = Annotated[
    int | None, typer.Option(help="Requests in a batch.", show_default="64", rich_help_panel=DEPLOYMENT)
]
SloOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A class (1-4: 2, 4, 6, 8 tokens/s), 7.5/s, or a mix 1:0.5,4:0.5; may be given several times.",
        show_default="2",
        rich_help_panel=LOAD,
    ),
]
SloScaleOption = Annotated[
    str | None,
    typer.Option(help="Times the time per token that is promised: 0.8,1,1.2.", show_default="1", rich_help_panel=LOAD),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        help="speed: tokens over the whole response; tpot: time per token after the first.",
        show_default="speed",
        rich_help_panel=LOAD,
    ),
]
ArrivalsOption = Annotated[
    str | None,
    typer.Option(
        help="closed:think_s=0, poisson:rate_per_s=2, or the file of a trace (Azure, BurstGPT, Mooncake, timestamps).",
        show_default="closed",
        rich_help_panel=LOAD,
    ),
]
ArrivalsScaleOption = Annotated[
    float | None,
    typer.Option(help="Times the rate of a trace's arrivals.", show_default="1", rich_help_panel=LOAD),
]
PromptTokensOption = Annotated[
    int | None, typer.Option(help="Where arrivals do not say; as recorded if left out.", rich_help_panel=LOAD)
]
OutputTokensOption = Annotated[
    int | None, typer.Option(help="Where arrivals do not say; as recorded if left out.", rich_help_panel=LOAD)
]
FactorOption = Annotated[
    str | None,
    typer.Option(
        "--estimator-factor",
        help="Times the true time that the scheduler believes: 0.5,1,2.",
        show_default="1",
        rich_help_panel=ESTIMATOR,
    ),
]
NoiseOption = Annotated[
    str | None,
    typer.Option(
        "--estimator-noise",
        help="Log-normal noise on each request's time: 0,0.2.",
        show_default="0",
        rich_help_panel=ESTIMATOR,
    ),
]
EstimatorProfileOption = Annotated[
    str | None,
    typer.Option(help="A profile of the same model that the scheduler goes by instead.", rich_help_panel=ESTIMATOR),
]
GuardOption = Annotated[
    str | None,
    typer.Option("--guard", help="Guard times of the schedulers that keep one: 0.05,0.1.", rich_help_panel=ESTIMATOR),
]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", help="Simulated seconds.", show_default="300", rich_help_panel=SIMULATION),
]
WarmUpOption = Annotated[
    float | None,
    typer.Option("--warm-up", help="Seconds that do not count.", show_default="30", rich_help_panel=SIMULATION),
]
SeedsOption = Annotated[
    int | None, typer.Option(help="Simulations of each point.", show_default="3", rich_help_panel=SIMULATION)
]
FirstSeedOption = Annotated[
    int | None, typer.Option("--seed", help="The first seed.", show_default="0", rich_help_panel=SIMULATION)
]
JobsOption = Annotated[
    int | None,
    typer.Option(help="Processes; -1 is one on every core.", show_default="-1", rich_help_panel=SIMULATION),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        help="processes of this machine, or ray for a cluster that runs.",
        show_default="processes",
        rich_help_panel=SIMULATION,
    ),
]
LimitOption = Annotated[int, typer.Option(help="Number of prompts, drawn by --seed.", rich_help_panel=RECORDING)]
MaxDraftOption = Annotated[
    int | None,
    typer.Option(help="Draft tokens recorded at every offset.", show_default="8", rich_help_panel=RECORDING),
]
OutFolderOption = Annotated[
    Path, typer.Option("--out", help="Folder that run directories are made in.", rich_help_panel=OUTPUT)
]

NUMBERS = {
    "slo_scale": "--slo-scale",
    "estimator_factor": "--estimator-factor",
    "estimator_noise": "--estimator-noise",
    "guard_s": "--guard",
}
"""Settings that hold several numbers, by the option that gives them."""


def find_preset(name: str | None) -> "Chosen | None":
    """The preset of that name."""
    from specbench_kit.serving.presets.base import presets
    from specbench_kit.serving.run import Chosen

    if name is None:
        return None
    return Chosen(name, presets.get(name))


def make_settings(given: Mapping[str, Any], preset: "Preset | None") -> "Settings":
    """Options as the command line gives them, over those of the preset, over the defaults."""
    from specbench_kit.bench.settings import RECORDED_TOGETHER
    from specbench_kit.bench.settings import Settings as RecordSettings
    from specbench_kit.serving.parallel import BACKENDS
    from specbench_kit.serving.settings import Settings

    known = {field.name for field in fields(Settings)}
    options = {**(preset.options if preset else {}), **_parsed(given)}
    chosen = {name: value for name, value in options.items() if name in known}
    for name, allowed in (("backend", BACKENDS), ("objective", ("speed", "tpot"))):
        if name in chosen and chosen[name] not in allowed:
            raise SkitError(f"--{name} must be {' or '.join(allowed)}, not '{chosen[name]}'")
    argv = ("skit", *sys.argv[1:])
    recording = RecordSettings(
        methods=("autoregressive",),
        batch_size=RECORDED_TOGETHER,
        seed=chosen.get("seed", 0),
        argv=argv,
        **{name: given[name] for name in ("target", "draft", "device", "dtype", "max_new_tokens", "limit")},
    )
    return Settings(**chosen, recording=recording, argv=argv)


def _parsed(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as settings hold it."""
    from specbench_kit.serving.settings import parse_devices, parse_numbers

    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, list):
            found[name] = tuple(value)
        elif name == "devices":
            found[name] = parse_devices(value)
        elif name in NUMBERS:
            found[name] = parse_numbers(NUMBERS[name], value)
    return found


def run_command(command: str, given: Mapping[str, Any]) -> None:
    """Run a command with its options, or the command of a preset."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.serving.run import Run

    chosen = find_preset(given["preset"])
    preset = chosen.preset if chosen else None
    settings = make_settings(given, preset)
    settings.points()
    console = Console(stderr=given["as_json"])
    more = {**(preset.options if preset else {}), **{k: v for k, v in given.items() if v is not None}}
    dataset = _load(settings, given, console) if settings.records else None
    with stepping_bar() as report:
        run = Run(settings=settings, dataset=dataset, chosen=chosen, report=report)
        outcome = _start(preset.command if preset else command, run, more)
    _print(console, outcome, given["as_json"])


def _start(command: str, run: Any, options: Mapping[str, Any]) -> "Outcome":
    from specbench_kit.serving.capacity import Rule
    from specbench_kit.serving.events import parse_window

    found: Outcome
    if command == "capacity":
        chosen = {name: options[name] for name in ("epsilon", "most", "resolution") if name in options}
        found = run.capacity(Rule(**chosen, objective=run.settings.objective))
        return found
    window = parse_window(options["timeline"]) if options.get("timeline") else None
    found = run.simulate(bool(options.get("events")), window)
    return found


def _load(settings: "Settings", given: Mapping[str, Any], console: "Console") -> Any:
    return load_dataset(given["dataset"], given["data_dir"], given["sample"], settings.recording, console)


def _print(console: "Console", outcome: "Outcome", as_json: bool) -> None:
    from specbench_kit.reports.serving.terminal import print_serving

    print_serving(console, outcome.run, outcome.summary)
    tell_report(console, outcome.folder, outcome.summary, as_json)
