"""`skit sweep`: replay a trace over a grid of deployments and options."""

from typing import TYPE_CHECKING

from specbench_kit.cli.common import JsonOption, command_line, load_dataset, say_target, tell_report
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.sweep.options import SweepOptions

if TYPE_CHECKING:
    pass


def sweep(options: Given[SweepOptions], dataset: DatasetOptions, as_json: JsonOption = False) -> None:
    """Run every point of the grid and print where each method pays off."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.sweep.report import SweepDescription, print_sweep
    from specbench_kit.studies.sweep.settings import SweepSettings

    settings = options.into(SweepSettings, argv=command_line())
    settings.points()  # an error in the grid is reported before anything is loaded
    console = Console(stderr=as_json)
    prompts = None
    if settings.trace is None and not settings.synthetic:
        prompts = load_dataset(dataset, settings.limit, settings.seed, console)
        say_target(console, settings.target)
    from specbench_kit.studies.sweep.run import run_sweep

    with stepping_bar() as report:
        outcome = run_sweep(settings, prompts, report)
    print_sweep(console, SweepDescription.read(outcome.run), outcome.summary)
    tell_report(console, outcome.folder, outcome.content, as_json)
