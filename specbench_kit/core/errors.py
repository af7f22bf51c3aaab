"""The exception that reaches users as one line, and helpers to raise it."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from specbench_kit.core.plain_text import one_line


class SkitError(Exception):
    """Bad input. The message is one line that says what is wrong and what to do; the CLI prints it
    and exits with 2.
    """

    def __str__(self) -> str:
        # The message may quote a file of somebody else, whose control characters must not reach the
        # terminal.
        return one_line(super().__str__())


class Interrupted(SkitError):
    """Ctrl-C or SIGTERM ended the work; the message says what is kept, and the CLI exits with
    130.
    """


class PolicyError(SkitError):
    """A policy asked for something impossible; the engine that called the policy adds the name of
    its method.
    """


class MethodError(SkitError):
    """A method's policy broke the contract of policies, so that it cannot go on; other methods of a
    benchmark can.
    """


def require(condition: bool, message: str) -> None:
    """Raise SkitError with `message` unless `condition` holds."""
    if not condition:
        raise SkitError(message)


def did_you_mean(name: str, valid_names: Iterable[str], most: int = 1) -> str:
    """Return ` (did you mean 'x'?)` with the `most` similar of the valid names, or nothing if none
    is similar.
    """
    return suggestion(get_close_matches(name, list(valid_names), n=most))


def suggestion(names: Sequence[str]) -> str:
    """Return ` (did you mean 'x', 'y' or 'z'?)`, or nothing without names."""
    if not names:
        return ""
    *others, last = (f"'{name}'" for name in names)
    before = f"{', '.join(others)} or " if others else ""
    return f" (did you mean {before}{last}?)"


MOST_LISTED = 12
"""Names that an error line lists; of more it suggests the nearest, and says what shows all."""
MOST_SUGGESTED = 3


def valid_choices(
    name: str,
    valid_names: Iterable[str],
    lister: str | None = None,
    likely: Sequence[str] = (),
) -> str:
    """Return the end of an error line on an unknown name: what may be meant, and which names are
    known.

    `lister` is the command that shows all of them, if there is one. `likely` names are suggested in
    place of similar ones.
    """
    names = list(valid_names)
    is_short = lister is None or len(names) <= MOST_LISTED
    meant = suggestion(likely) or did_you_mean(
        name.lower(), names, 1 if is_short else MOST_SUGGESTED
    )
    known = f"known: {', '.join(names)}" if is_short else f"{lister} shows all {len(names)}"
    return f"{meant}; {known}"


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names that share each reason, in the order of their first occurrence."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return names
