"""The one exception that reaches users."""


class SkitError(Exception):
    """Bad input: one line that says what is wrong and what to do. The CLI prints it and exits with 2."""
