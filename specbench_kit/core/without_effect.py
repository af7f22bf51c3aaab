"""Options that would have no effect beside others: declared per command, and refused in one line
instead of ignored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """`options` that have no effect in some case, by the names of their fields, and `because` says why.

    `case` returns the words for the case if the given values are one, such as `with --replay`, else an empty text.
    """

    options: tuple[str, ...]
    case: Callable[[OptionValues], str]
    because: str


def beside(name: str, written: str = "") -> Callable[[OptionValues], str]:
    """Return the case in which the option `name` is given, whose flag may be `written`
    otherwise.
    """
    words = f"with {written or flag(name)}"
    return lambda given: words if name in given else ""


def unless(*names: str) -> Callable[[OptionValues], str]:
    """Return the case in which none of these options is given, or only as an empty value, 0 or
    false.
    """
    words = f"without {' or '.join(map(flag, names))}"
    return lambda given: "" if any(given.get(name) for name in names) else words


def refuse_without_effect(
    rules: Sequence[WithoutEffect], given: OptionValues, flag_of: Callable[[str, object], str]
) -> None:
    """Raise SkitError for the first given option that has no effect; `flag_of` returns how it was
    written.
    """
    for rule in rules:
        names = [name for name in rule.options if name in given]
        if names and (case := rule.case(given)):
            flags = ", ".join(flag_of(name, given[name]) for name in names)
            verb = "have" if len(names) > 1 else "has"
            raise SkitError(f"{flags} {verb} no effect {case}: {rule.because}")


def flag_of(name: str, value: object) -> str:
    """Return the flag that gives a field of this name the value, where the flag is named as the
    field is.
    """
    return f"--no-{flag(name)[2:]}" if value is False else flag(name)


def flag(name: str) -> str:
    """Return the flag of an option whose field has this name."""
    return f"--{name.replace('_', '-')}"
