"""`skit calibrate`: what a step costs on a server, fitted to its log."""

from dataclasses import asdict
from typing import Annotated

from specbench_kit.cli.common import JsonOption, print_json, say
from specbench_kit.core.option import FIRST
from specbench_kit.studies.calibration.settings import CalibrationSettings


def calibrate(settings: CalibrationSettings, as_json: Annotated[JsonOption, FIRST] = False) -> None:
    """Fit the first third of the log, print how the rest compares, and save the profile."""
    from rich.console import Console

    from specbench_kit.cli.progress import counting_bar
    from specbench_kit.reports import render_terminal
    from specbench_kit.studies.calibration.run import blocks, fitted_numbers
    from specbench_kit.studies.calibration.run import calibrate as run

    console = Console(stderr=as_json)
    with counting_bar("fitting") as report:
        outcome = run(settings, report)
    render_terminal.show(console, blocks(outcome))
    say(console, f"profile: {outcome.path}")
    if as_json:
        agreements = {name: list(map(asdict, rest)) for name, rest in outcome.agreements.items()}
        content = {
            "file": str(outcome.path),
            "fitted": fitted_numbers(outcome.speed),
            "rest": agreements,
            "log": outcome.reading.line,
            "extrapolation": asdict(outcome.extrapolation),
        }
        print_json(content)
