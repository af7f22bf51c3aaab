"""The cases in which options have no effect beside others: they are refused in one line instead of
ignored.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import NotWith, Option, OptionValues, WithoutEffect, options_in

RECORDED = "a trace has its own prompts, models and answers; leave out one of them"
OWN_ANSWERS = "a trace has its own prompts and answers; leave out one of them"
"""Why options of what is decoded have no effect beside a trace."""


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


def greedily(given: OptionValues) -> str:
    """Return the case in which decoding is greedy."""
    return "" if given.get("temperature") else "without --temperature"


GREEDY = WithoutEffect(
    greedily,
    "greedy decoding takes the most likely token; give a --temperature above 0 or leave it out",
)


def refuse_without_effect(
    options: Mapping[str, Option], given: OptionValues, flag_of: Callable[[str, object], str]
) -> None:
    """Raise SkitError for the first case in which given options have no effect, in the order of the
    `options` by the names of their fields; `flag_of` returns how an option was written.
    """
    cases: dict[tuple[Callable[[OptionValues], str], str], list[str]] = {}
    for name, option in options.items():
        for rule in option.without_effect:
            cases.setdefault((rule.case, rule.because), []).append(name)
    for (case, because), members in cases.items():
        names = [name for name in members if name in given]
        if names and (words := case(given)):
            flags = ", ".join(flag_of(name, given[name]) for name in names)
            verb = "have" if len(names) > 1 else "has"
            raise SkitError(f"{flags} {verb} no effect {words}: {because}")


def refuse_together(kind: type, given: Collection[str]) -> None:
    """Raise SkitError for two options of a dataclass that are given and cannot go together, by what
    stands beside one of them.
    """
    for name, rule in _not_together(kind):
        require(
            name not in given or rule.other not in given,
            f"{flag(name)} cannot go with {flag(rule.other)}: {rule.because}; leave out one of them",
        )


@cache  # a study constructs its settings anew for every point
def _not_together(kind: type) -> Sequence[tuple[str, NotWith]]:
    return [(field.name, rule) for field, _, option in options_in(kind) for rule in option.not_with]


def flag_of(name: str, value: object) -> str:
    """Return the flag that gives a field of this name the value, where the flag is named as the
    field is.
    """
    return f"--no-{flag(name)[2:]}" if value is False else flag(name)


def flag(name: str) -> str:
    """Return the flag of an option whose field has this name."""
    return f"--{name.replace('_', '-')}"
