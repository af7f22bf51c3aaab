"""How a field of settings is given from outside; whoever reads command lines makes options of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from specbench_kit.core.errors import SkitError

T = TypeVar("T")
Given = Mapping[str, Any]
"""Options that were given, by the names of their fields."""

RUN, MODELS, DECODING, DEPLOYMENT, SERVER, OUTPUT = (
    "What to run",
    "Models",
    "Decoding",
    "Deployment",
    "Server",
    "Output",
)
"""Panels that several commands have."""


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of an annotated field: `Annotated[int, Option("Requests in a batch.")] = 64`.

    `flag` is what it is called outside where that is not the field's name, `panel` the group that its help stands in.
    `parse` makes the field's value of a text; a field without it holds what is given. An `argument` stands on the
    command line by its place, without a flag.
    """

    help: str
    panel: str = ""
    flag: str = ""
    parse: Callable[[str], Any] | None = None
    argument: bool = False


def part(settings: type, given: Given) -> dict[str, Any]:
    """Those of the options that are fields of a dataclass."""
    known = {field.name for field in fields(settings)}
    return {name: value for name, value in given.items() if name in known}


def declared_in(settings: type) -> Iterator[tuple[Field[Any], Any, Option]]:
    """The fields of a dataclass that can be given from outside, with their types."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        if get_origin(hints[field.name]) is Annotated:
            kind, *more = get_args(hints[field.name])
            yield from ((field, kind, one) for one in more if isinstance(one, Option))


def from_keywords(settings: type[T], given: Given, **more: Any) -> T:
    """Settings from keywords in Python, which may be as short as on the command line.

    One value may stand for a field of several, and a text for a path or for what its option parses. `more` are fields
    that are no options. An unknown keyword is an error that lists the known ones.
    """
    known = {field.name: (kind, option) for field, kind, option in declared_in(settings)}
    if unknown := sorted(given.keys() - known.keys()):
        raise SkitError(f"unknown option '{unknown[0]}'; known: {', '.join(sorted(known))}")
    return settings(**{name: _value(*known[name], value) for name, value in given.items()}, **more)


def _value(kind: Any, option: Option, value: Any) -> Any:
    (inner,) = (one for one in get_args(kind) if one is not NoneType) if NoneType in get_args(kind) else (kind,)
    if isinstance(value, str) and option.parse is not None:
        return option.parse(value)
    if get_origin(inner) is tuple:
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    return Path(value) if inner is Path and isinstance(value, str) else value
