"""`skit sweep`: replay a trace over a grid of deployments and options."""

from typing import TYPE_CHECKING

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, load_dataset, tell_report
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import Given
from specbench_kit.studies.sweep.options import SweepOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.studies.sweep.run import SweepOutcome
    from specbench_kit.studies.sweep.settings import SweepSettings


def sweep(options_given: Given[SweepOptions], prompts: DatasetOptions, as_json: options.JsonOption = False) -> None:
    """Compare methods over a range of deployments or options, and find where they stop paying for themselves."""
    from rich.console import Console

    from specbench_kit.studies.sweep.settings import SweepSettings

    settings = SweepSettings(**options_given.values, argv=command_line())
    settings.points()
    console = Console(stderr=as_json)
    recorded = settings.trace is None and not settings.synthetic
    outcome = _run(settings, load_dataset(prompts, settings.limit, settings.seed, console) if recorded else None)
    _print_outcome(console, outcome)
    tell_report(console, outcome.folder, outcome.summary, as_json)


def _run(settings: "SweepSettings", dataset: "LoadedDataset | None") -> "SweepOutcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.sweep.run import run_sweep

    with stepping_bar() as report:
        return run_sweep(settings, dataset, report)


def _print_outcome(console: "Console", outcome: "SweepOutcome") -> None:
    from specbench_kit.reports.sweep.terminal import print_sweep

    print_sweep(console, outcome.run, outcome.summary)
