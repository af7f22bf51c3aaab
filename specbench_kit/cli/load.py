"""`skit load` and `skit validate`: many devices at a real server, and the simulator beside them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench_kit.cli import options
from specbench_kit.cli.common import say, tell_report
from specbench_kit.cli.declared import Given, options_of
from specbench_kit.studies.load.settings import Settings

if TYPE_CHECKING:
    from specbench_kit.studies.load.run import Outcome


@options_of(Settings)
def load(given: Given, as_json: options.JsonOption = False) -> None:
    """Let many devices draft for a server of `skit serve`: their drafts are recorded, what the server does is real."""
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import run

    settings = Settings(**given, argv=("skit", *sys.argv[1:]))
    with stepping_bar() as report:
        outcome = run.load(settings, report)
    _tell(outcome, "report.md", as_json)


def validate(
    folder: Annotated[Path, typer.Argument(help="The folder of a run of `skit load`.")],
    as_json: options.JsonOption = False,
) -> None:
    """Simulate what `skit load` measured, and set both side by side."""
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import validation

    with stepping_bar() as report:
        outcome = validation.validate(folder, report)
    _tell(outcome, f"{validation.VALIDATION}.md", as_json)


def _tell(outcome: "Outcome", name: str, as_json: bool) -> None:
    from rich.console import Console

    console = Console(stderr=as_json)
    for line in outcome.text.partition("\n## ")[0].splitlines():
        if line.startswith(("|", "> **")):
            say(console, line)
    tell_report(console, outcome.folder, outcome.summary, as_json, name)
