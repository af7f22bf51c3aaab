"""What a wrong command line raises, and how it is said in one line."""

from typing import Any

import typer

UsageError: Any = typer.BadParameter.__mro__[1]
"""The base of all errors of a command line; Typer ships it in itself or takes that of click, by its
version.
"""


def usage_problem(error: Any) -> str:
    """Return what is wrong with a command line as a part of a sentence."""
    problem = str(error.format_message()).removesuffix(".")
    return problem[:1].lower() + problem[1:]
