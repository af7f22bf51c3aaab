"""The option that only the command line has."""

from typing import Annotated

from specbench_kit.core.option import OUTPUT, Option

JsonOption = Annotated[
    bool, Option("Print the result as one line of JSON on stdout; tables go to stderr.", OUTPUT, flag="json")
]
