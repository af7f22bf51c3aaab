"""Read specs such as `fixed-k:k=4,drafter=head` into dataclasses with checked options."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.registry import Registry

T = TypeVar("T")


def parse_spec(spec: str, registry: Registry[type[T]]) -> T:
    """Return the object that a spec names; SkitError with the valid ones for an unknown name, key
    or value.
    """
    name, _, options = spec.partition(":")
    return from_options(name, registry.get(name), options)


def from_options(name: str, factory: Callable[..., T], options: str, separator: str = ",") -> T:
    """Return the dataclass `factory` made with `key=value,key=value`; error messages call it
    `name`.
    """
    hints = get_type_hints(factory)
    init = init_fields(cast("type", factory))
    types = {field.name: hints[field.name] for field in init}
    values: dict[str, object] = {}
    for item in filter(None, options.split(separator)):
        key, equals, value = item.partition("=")
        if key not in types:
            hint = did_you_mean(key, types)
            raise SkitError(
                f"{name}: unknown option '{key}'{hint}; known: {', '.join(types) or 'none'}"
            )
        if not equals:
            raise SkitError(f"{name}: option '{key}' needs a value, as in {key}=...")
        if key in values:
            raise SkitError(f"{name}: option '{key}' is given twice")
        values[key] = _parse_value(f"{name}: {key}", value, types[key])
    for field in init:
        if (
            field.name not in values
            and field.default is MISSING
            and field.default_factory is MISSING
        ):
            raise SkitError(
                f"{name}: option '{field.name}' has to be given, as in {name}:{field.name}=..."
            )
    return factory(**values)


def init_fields(kind: Any) -> "list[Field[object]]":
    """Return the fields that a dataclass takes when it is made: its own first, then keyword-only
    ones of its bases.
    """
    return sorted(
        (field for field in fields(kind) if field.init), key=lambda field: bool(field.kw_only)
    )


def _parse_value(where: str, text: str, kind: Any) -> Any:
    """Return `text` as a value of type `kind`, the first that fits if it is a union; `where` begins
    the message.
    """
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise SkitError(f"{where} must be one of {', '.join(get_args(kind))}, not '{text}'")
        return text
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise SkitError(f"{where} must be true or false, not '{text}'")
        return text.lower() == "true"
    if get_origin(kind) is tuple:
        # Items are joined by + or -, because the comma separates options.
        return tuple(
            _parse_value(where, item, get_args(kind)[0])
            for item in text.replace("+", "-").split("-")
        )
    choices = [choice for choice in get_args(kind) or (kind,) if choice is not NoneType]
    for choice in choices:
        if get_origin(choice) is Literal:
            if text in get_args(choice):
                return text
            continue
        try:
            return choice(text)
        except ValueError:
            continue
    raise SkitError(
        f"{where} must be {' or '.join(_type_words(choice) for choice in choices)}, not '{text}'"
    )


def _type_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    name: str = kind.__name__
    return {"int": "a whole number", "float": "a number", "str": "a text"}.get(name, name)
