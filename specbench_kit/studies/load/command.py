"""`skit load` and `skit validate`: many devices at a real server, and the simulation of such a
run.
"""

from pathlib import Path
from typing import Annotated

from specbench_kit.cli.common import JsonOption, command_line, tell_study
from specbench_kit.core.option import Given, Option
from specbench_kit.studies.load.settings import LoadSettings


def load(options: Given[LoadSettings], as_json: JsonOption = False) -> None:
    """Load the server with every number of devices and print the result."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import run

    settings = options.make(argv=command_line())
    with stepping_bar() as report:
        study = run.load(settings, report)
    tell_study(Console(stderr=as_json), study, as_json)


def validate(
    folder: Annotated[Path, Option("Run directory of `skit load`.", argument=True)],
    as_json: JsonOption = False,
) -> None:
    """Simulate the run and print the simulated next to the measured figures."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import validation

    with stepping_bar() as report:
        study = validation.validate(folder, report)
    tell_study(Console(stderr=as_json), study, as_json)
