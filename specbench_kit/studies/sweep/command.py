"""`skit sweep`: replay a trace over a grid of deployments and options."""

from pathlib import Path
from typing import Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    say,
    say_target,
    tell_study,
)
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.sweep.options import REPLAYED, SYNTHETIC_PAIR, SweepOptions
from specbench_kit.traces.library import DEFAULT_TRACE, SAY_DEFAULT

RECORDED_FIRST = (
    *(
        "trace",
        "minutes",
        "target",
        "draft",
        "device",
        "dtype",
        "executor",
        "max_new_tokens",
        "max_draft",
    ),
)
"""Options of which one asks for a trace, or for what to record."""


def sweep(
    options: Given[SweepOptions],
    dataset: Annotated[Given[DatasetOptions], REPLAYED, SYNTHETIC_PAIR],
    as_json: JsonOption = False,
) -> None:
    """Run every point of the grid and print where each method pays off."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.sweep.settings import SweepSettings

    is_default = not dataset.values and not any(name in options.values for name in RECORDED_FIRST)
    defaults = {"trace": Path(DEFAULT_TRACE)} if is_default else {}
    settings = options.into(SweepSettings, argv=command_line(), **defaults)
    settings.points()  # an error in the grid is reported before anything is loaded
    if settings.resume:
        from specbench_kit.runs.folder import require_unfinished

        require_unfinished(settings.out, "sweep", command_line())
    console = Console(stderr=as_json)
    if is_default:
        say(console, SAY_DEFAULT.format(option="--replay", instead="give --target or --dataset"))
    prompts = None
    if settings.trace is None and not settings.synthetic:
        prompts = load_dataset(dataset.make(), settings.prompts, settings.seed, console)
        say_target(console, settings.target)
    from specbench_kit.studies.sweep.run import run_sweep

    with stepping_bar() as report:
        study = run_sweep(settings, prompts, report)
    tell_study(console, study, as_json)
