"""The exit codes of all commands, for programs that read them; docs/recipes/gate.md lists them for
people.
"""

FAILED = 1
"""A check that was asked for says no: `--fail-if`, `--strict`, `suite check` or `doctor`. Nothing
else ends with it.
"""
REFUSED = 2
"""Bad input, a machine or server that does not do its part: one line says what is wrong and what to
do.
"""
INCONCLUSIVE = 3
"""No condition of --fail-if holds, but one could not be judged: a busy or disturbed machine, or too
small runs.
"""
FAULT = 70
"""A fault of the kit itself, with a traceback: EX_SOFTWARE of BSD's sysexits.h."""
INTERRUPTED = 130
"""Ended by Ctrl-C or SIGTERM; one line says what is kept."""
