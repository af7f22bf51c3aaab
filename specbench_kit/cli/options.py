"""The option that only the command line has."""

from typing import Annotated

from specbench_kit.core.option import OUTPUT, Option

JsonOption = Annotated[bool, Option("End stdout with one line of JSON; tables go to stderr.", OUTPUT, flag="json")]
