"""`skit load` and `skit validate`: many devices at a real server, and the simulation of such a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import JsonOption, command_line, say, tell_report
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
    _tell(outcome, "report.md", as_json)


def validate(
    folder: Annotated[Path, Option("Run directory of `skit load`.", argument=True)], as_json: JsonOption = False
) -> None:
    """Simulate the run and print the simulated next to the measured figures."""
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import validation

    with stepping_bar() as report:
        outcome = validation.validate(folder, report)
    _tell(outcome, f"{validation.VALIDATION}.md", as_json)


def _tell(outcome: "LoadOutcome", name: str, as_json: bool) -> None:
    from rich.console import Console

    console = Console(stderr=as_json)
    # The terminal shows tables and warnings of the report's first section.
    for line in outcome.text.partition("\n## ")[0].splitlines():
        if line.startswith(("|", "> **")):
            say(console, line)
    tell_report(console, outcome.folder, outcome.summary, as_json, name)
