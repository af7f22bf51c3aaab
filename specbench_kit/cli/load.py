"""`skit load` and `skit validate`: many devices at a real server, and the simulation of such a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import JsonOption, command_line, tell_report
from specbench_kit.core.option import Given, Option
from specbench_kit.studies.load.settings import LoadSettings

if TYPE_CHECKING:
    from specbench_kit.studies.load.run import LoadOutcome


def load(options: Given[LoadSettings], as_json: JsonOption = False) -> None:
    """Load the server with every number of devices and print the result."""
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import run

    settings = options.make(argv=command_line())
    with stepping_bar() as report:
        outcome = run.load(settings, report)
    _tell(outcome, "report", as_json)


def validate(
    folder: Annotated[Path, Option("Run directory of `skit load`.", argument=True)], as_json: JsonOption = False
) -> None:
    """Simulate the run and print the simulated next to the measured figures."""
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import validation

    with stepping_bar() as report:
        outcome = validation.validate(folder, report)
    _tell(outcome, validation.VALIDATION, as_json)


def _tell(outcome: "LoadOutcome", stem: str, as_json: bool) -> None:
    from itertools import takewhile

    from rich.console import Console

    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.document import Folded, Heading

    console = Console(stderr=as_json)
    # The terminal shows the first screen of the page: what precedes the first heading, less what opens on a click.
    opening = takewhile(lambda block: not isinstance(block, Heading), outcome.report.blocks)
    render_terminal.show(console, [block for block in opening if not isinstance(block, Folded)])
    tell_report(console, outcome.folder, outcome.summary, as_json, stem)
