"""`skit load` and `skit validate`: many devices at a real server, and the simulator beside them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, say, tell_report
from specbench_kit.core.option import Given, Option
from specbench_kit.studies.load.settings import Settings

if TYPE_CHECKING:
    from specbench_kit.studies.load.run import Outcome


def load(options_given: Given[Settings], as_json: options.JsonOption = False) -> None:
    """Let many devices draft for a server of `skit serve`: their drafts are recorded, what the server does is real."""
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.load import run

    settings = options_given.make(argv=command_line())
    with stepping_bar() as report:
        outcome = run.load(settings, report)
    _tell(outcome, "report.md", as_json)


def validate(
    folder: Annotated[Path, Option("The folder of a run of `skit load`.", argument=True)],
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
