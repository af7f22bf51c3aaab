"""Options: annotated fields of dataclasses, which the command line, option files and the Python
interface all read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from specbench_kit.core.errors import SkitError, did_you_mean, require

T = TypeVar("T")
S = TypeVar("S")

OptionValues = Mapping[str, object]
"""Values of options by name, each of the type of its field."""
RUN = "What to run"
MODELS = "Models"
DECODING = "Decoding"
DEPLOYMENT = "Deployment"
SERVER = "Server"
OUTPUT = "Output"
"""Headings under which the help of several commands groups its options."""


Recorded = Literal["no", "always", "if changed", "as found"]
"""Whether a run's `run.json` holds an option under its name: its value, that of another than the
default alone, or what the run found where the option left it open. `skit rerun` restores what it
holds.
"""


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """A case in which an option has no effect, so that it is refused: `because` says why, and what to do.

    It stands beside the `Option` of a field; beside a dataclass that a command takes it is about all of its options, or
    about those that `of` names. `case` returns the words for the case if the given values are one, such as `with
    --replay`, else an empty text.
    """

    case: Callable[[OptionValues], str]
    because: str
    options: tuple[str, ...] = ()

    def of(self, *options: str) -> "WithoutEffect":
        """Return the same case for some of a dataclass's options, by the names of their fields."""
        return replace(self, options=options)


@dataclass(frozen=True, slots=True)
class NotWith:
    """Another option that an option cannot go with, by the name of its field, and why.

    It stands beside the `Option` of one of the two; neither counts that has its default.
    """

    other: str
    because: str


@dataclass(frozen=True, slots=True)
class First:
    """A mark beside an option that `--help` shows where a command has many; `--help-all` shows the others too.

    Beside a dataclass that a command takes it is about the options that `of` names.
    """

    options: tuple[str, ...] = ()

    def of(self, *options: str) -> "First":
        """Return the mark of some of a dataclass's options, by the names of their fields."""
        return replace(self, options=options)


FIRST = First()


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata that makes an annotated field an option: `Annotated[int, Option("Requests in a
    batch.")] = 64`.

    `help` is the help text and `panel` the heading that it stands under. `flag` is the name on the command line where
    it differs from the name of the field. `parse` turns the text of the command line into the field's value; without
    it the field holds the text converted to its type. An `argument` is given by position, without a flag. `recorded`
    says whether a run holds it.

    What else is true of an option in one command stands beside it, in any order: `Annotated[Target, FIRST,
    WithoutEffect(...)]` adds to an option that several commands share.
    """

    help: str
    panel: str = ""
    flag: str = ""
    parse: Callable[[str], object] | None = None
    argument: bool = False
    recorded: Recorded = "no"
    first: bool = False
    without_effect: tuple[WithoutEffect, ...] = ()
    not_with: tuple[NotWith, ...] = ()
    """What the marks beside it say, as `beside` fills it in."""

    def shown_name(self, name: str) -> str:
        """Return what the command line calls the field `name`: `--batch-size`, or the bare name of
        an argument.
        """
        return name if self.argument else f"--{(self.flag or name).replace('_', '-')}"

    def beside(self, name: str, metadata: Iterable[object]) -> "Option":
        """Return the option of the field `name` with what stands beside it or its dataclass."""
        first, cases, others = self.first, list(self.without_effect), list(self.not_with)
        for mark in metadata:
            if isinstance(mark, NotWith):
                others.append(mark)
            if isinstance(mark, First | WithoutEffect) and name in (mark.options or (name,)):
                first |= isinstance(mark, First)
                cases += [mark] if isinstance(mark, WithoutEffect) else []
        return replace(self, first=first, without_effect=tuple(cases), not_with=tuple(others))


@dataclass(frozen=True, slots=True)
class Given(Generic[T]):
    """The options that a user gave for `kind`, a dataclass that takes more than options to
    construct.
    """

    kind: Callable[..., T]
    values: OptionValues

    def make(self, **others: object) -> T:
        """Construct the dataclass from the given options and the `others`, which win over options
        of the same name.
        """
        return self.into(self.kind, **others)

    def into(self, kind: Callable[..., S], **others: object) -> S:
        """Construct `kind`, a subclass of the dataclass, from the given options and the
        `others`.
        """
        return kind(**{**self.values, **others})


def select_fields(kind: type, values: OptionValues) -> dict[str, Any]:
    """Return the entries of `values` whose names are fields of the dataclass `kind`."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def options_in(kind: type) -> Iterator[tuple[Field[object], object, Option]]:
    """Yield each field of a dataclass that is an option, with its type and its metadata."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            field_type, *metadata = get_args(hints[field.name])
            yield from (
                (field, field_type, option.beside(field.name, metadata))
                for option in metadata
                if isinstance(option, Option)
            )


def recorded_values(options: object) -> OptionValues:
    """Return what `run.json` holds of a dataclass's options, without those that it holds as
    found.
    """
    values = {}
    for field, _, option in options_in(type(options)):
        value = getattr(options, field.name)
        if option.recorded == "always" or (
            option.recorded == "if changed" and value != field.default
        ):
            values[field.name] = getattr(value, "spec", value)
    return values


def recorded_names(kind: type) -> set[str]:
    """Return the names of the options that `recorded_values` may return."""
    return {
        field.name
        for field, _, option in options_in(kind)
        if option.recorded in ("always", "if changed")
    }


def restored_values(kind: type, recorded: OptionValues) -> dict[str, Any]:
    """Return the options of the dataclass `kind` that `run.json` holds, as the dataclass takes
    them.
    """
    values: dict[str, Any] = {}
    for field, _, option in options_in(kind):
        if option.recorded != "no" and field.name in recorded:
            value = recorded[field.name]
            values[field.name] = (
                option.parse(value) if option.parse and isinstance(value, str) else value
            )
    return values


def inner_type(field_type: object) -> object:
    """Return `T` for a field of type `T | None`, and every other type as it is."""
    arguments = get_args(field_type)
    return (
        next(kind for kind in arguments if kind is not NoneType)
        if NoneType in arguments
        else field_type
    )


def from_keywords(kind: type[T], keywords: OptionValues, **others: object) -> T:
    """Construct the dataclass `kind` from keyword arguments, which may be as short as on the
    command line.

    A field of several values takes one alone, and a path or a field with its own `parse` takes
    text. `others` are fields that are not options. Raise SkitError, with the valid names, for an
    unknown keyword, and for a value of another kind.
    """
    options = {field.name: (field_type, option) for field, field_type, option in options_in(kind)}
    if unknown := sorted(keywords.keys() - options.keys()):
        hint = did_you_mean(unknown[0], options)
        raise SkitError(f"unknown option '{unknown[0]}'{hint}; known: {', '.join(sorted(options))}")
    return kind(
        **{name: _value(name, *options[name], value) for name, value in keywords.items()}, **others
    )


KINDS: Mapping[object, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (Path, "a path"),
}
"""What a field of each type takes, and the words for it."""


def _value(name: str, field_type: object, option: Option, value: object) -> object:
    """Return the field's value for a keyword's; raise SkitError for a value of another kind."""
    single = inner_type(field_type)
    if value is None and single is not field_type:
        return None
    if isinstance(value, str) and option.parse is not None:
        return option.parse(value)
    shown = option.shown_name(name)
    if get_origin(single) is tuple:
        values = value if isinstance(value, list | tuple) else (value,)
        return tuple(_checked(shown, get_args(single)[0], item) for item in values)
    return _checked(shown, single, value)


def _checked(shown: str, kind: object, value: object) -> object:
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        require(value in choices, f"{shown} must be {' or '.join(choices)}, not {value!r}")
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is str and isinstance(value, Path | int | float) and not isinstance(value, bool):
        return str(value)  # the command line has no other kind of value: prompt_tokens=50
    accepted, words = KINDS.get(kind, (object, ""))
    is_switch = isinstance(value, bool) and kind is not bool  # Python takes True for the number 1
    require(
        isinstance(value, accepted) and not (words and is_switch),
        f"{shown} must be {words}, not {value!r}",
    )
    return value
