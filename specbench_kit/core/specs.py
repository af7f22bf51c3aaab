"""Read `name:key=value,key=value` into a dataclass with checked options."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import Registry

T = TypeVar("T")


def parse_spec(spec: str, registry: Registry[type[T]]) -> T:
    """What a spec names; unknown names, unknown keys and bad values are errors that list what is valid."""
    name, _, tail = spec.partition(":")
    return from_options(name, registry.get(name), tail)


def from_options(name: str, factory: Callable[..., T], tail: str, separator: str = ",") -> T:
    """A dataclass made of `key=value,key=value`; errors call it `name`."""
    hints = get_type_hints(factory)
    declared = init_fields(cast("Any", factory))
    known = {field.name: hints[field.name] for field in declared}
    options: dict[str, Any] = {}
    for item in filter(None, tail.split(separator)):
        key, equals, value = item.partition("=")
        if key not in known:
            raise SkitError(f"{name}: unknown option '{key}'; known: {', '.join(known) or 'none'}")
        if not equals:
            raise SkitError(f"{name}: option '{key}' needs a value, as in {key}=...")
        if key in options:
            raise SkitError(f"{name}: option '{key}' is given twice")
        options[key] = _parse_value(f"{name}: {key}", value, known[key])
    for field in declared:
        if field.name not in options and field.default is MISSING and field.default_factory is MISSING:
            raise SkitError(f"{name}: option '{field.name}' has to be given, as in {name}:{field.name}=...")
    return factory(**options)


def init_fields(kind: Any) -> "list[Field[Any]]":
    """Those fields of a dataclass that its maker is given, the ones of its own first."""
    return sorted((field for field in fields(kind) if field.init), key=lambda field: bool(field.kw_only))


def _parse_value(where: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise SkitError(f"{where} must be one of {', '.join(get_args(kind))}, not '{text}'")
        return text
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise SkitError(f"{where} must be true or false, not '{text}'")
        return text.lower() == "true"
    if get_origin(kind) is tuple:
        return tuple(_parse_value(where, part, get_args(kind)[0]) for part in text.replace("+", "-").split("-"))
    choices = [k for k in get_args(kind) or (kind,) if k is not NoneType]
    for choice in choices:
        if get_origin(choice) is Literal:
            if text in get_args(choice):
                return text
            continue
        try:
            return choice(text)
        except ValueError:
            continue
    raise SkitError(f"{where} must be {' or '.join(_words(choice) for choice in choices)}, not '{text}'")


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    name: str = kind.__name__
    return {"int": "a whole number", "float": "a number", "str": "a text"}.get(name, name)
