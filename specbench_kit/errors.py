"""The one exception that reaches users."""


class SkitError(Exception):
    """Bad input: one line that says what is wrong and what to do. The CLI prints it and exits with 2."""


class PolicyError(SkitError):
    """A policy asked for what cannot be; whoever asked the policy adds the name of its method."""
