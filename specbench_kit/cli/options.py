"""The option that belongs to the command line alone."""

from typing import Annotated

import typer

from specbench_kit.core.option import OUTPUT

JsonOption = Annotated[
    bool, typer.Option("--json", help="End stdout with one line of JSON; tables go to stderr.", rich_help_panel=OUTPUT)
]
