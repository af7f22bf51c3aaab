"""The one exception that reaches users."""

from specbench_kit.plain_text import one_line


class SkitError(Exception):
    """Bad input: one line that says what is wrong and what to do. The CLI prints it and exits with 2."""

    def __str__(self) -> str:
        return one_line(super().__str__())  # what it quotes may come from a file of somebody else


class PolicyError(SkitError):
    """A policy asked for what cannot be; whoever asked the policy adds the name of its method."""
