"""The one exception that reaches users, and what it proposes."""

from collections.abc import Iterable
from difflib import get_close_matches

from specbench_kit.core.plain_text import one_line


class SkitError(Exception):
    """Bad input: one line that says what is wrong and what to do. The CLI prints it and exits with 2."""

    def __str__(self) -> str:
        return one_line(super().__str__())  # what it quotes may come from a file of somebody else


class PolicyError(SkitError):
    """A policy asked for what cannot be; whoever asked the policy adds the name of its method."""


def require(condition: bool, message: str) -> None:
    """Raise SkitError with `message` unless `condition` holds."""
    if not condition:
        raise SkitError(message)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, in brackets behind a blank; nothing where none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""
