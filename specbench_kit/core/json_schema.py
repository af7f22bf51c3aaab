"""JSON texts, and whether they follow a JSON schema.

The library jsonschema reads the schema by the draft that it names, else by 2020-12. Nothing is
fetched: a reference to another document is refused.
"""

import json
from collections.abc import Iterator
from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line

if TYPE_CHECKING:
    from jsonschema import ValidationError

JsonValue: TypeAlias = Any
"""Whatever a JSON text holds: None, a boolean, a number, a text, a list or a dict of them."""
Schema: TypeAlias = Any
"""A schema: an object, or true (any value) and false (no value)."""


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is no JSON")


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) < MOST_DIGITS else float(digits)


MOST_DIGITS = 4000
"""Digits from which Python makes no whole number of a text, so that it is a float here."""
_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=_no_constant)


def parse_json(text: str) -> JsonValue:
    """Return the value of a text that is JSON as a whole; raise ValueError for any other text."""
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _multiple_of(
    validator: Any, step: float, value: JsonValue, _: Schema
) -> "Iterator[ValidationError]":
    """Yield an error for a number that is no multiple, as decimal fractions: 0.3 is three times 0.1."""
    from jsonschema import ValidationError

    if not validator.is_type(value, "number"):
        return
    if not isfinite(value) or Fraction(str(value)) % Fraction(str(step)):
        yield ValidationError(f"{value} is not a multiple of {step}")


class JsonSchema:
    """A schema that values are held against.

    Raise SkitError for a text that is no schema, and for one that refers to what is not in it.
    """

    def __init__(self, text: str) -> None:
        # The library takes a fifth of a second to import, and few commands read schemas.
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import extend, validator_for
        from referencing import Registry, Resource
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012

        self._unresolvable = Unresolvable
        try:
            schema: Schema = parse_json(text)
        except ValueError as error:
            raise SkitError(f"a JSON schema is not valid JSON: {first_line(error)}") from error
        kind: Any = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema, format_checker=kind.FORMAT_CHECKER)
        except SchemaError as error:
            where = "/".join(map(str, error.absolute_path))
            raise SkitError(
                f"a JSON schema has a fault{f' at {where}' if where else ''}: {first_line(error)}"
            ) from error
        # A registry of its own fetches nothing, where the library's would go to the network.
        registry: Registry[Any] = Registry()
        self._validator: Any = extend(  # type: ignore[no-untyped-call]
            kind, {"multipleOf": _multiple_of}
        )(schema, registry=registry)
        resolver = registry.resolver_with_root(
            Resource.from_contents(schema, default_specification=DRAFT202012)
        )
        for reference in _references(schema):
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                raise _not_in_it(reference) from error

    @classmethod
    def of(cls, schema: Schema) -> "JsonSchema":
        """Return the schema that an object, or a boolean, states."""
        return cls(json.dumps(schema))

    def allows(self, value: JsonValue) -> bool:
        """Return whether a value follows the schema."""
        try:
            return bool(self._validator.is_valid(value))
        except RecursionError as error:
            raise SkitError("the JSON schema refers to itself without end") from error
        except self._unresolvable as error:
            raise _not_in_it(error.ref) from error


def _not_in_it(reference: str) -> SkitError:
    return SkitError(
        f"a JSON schema refers to '{reference}', which is not in it: references to other files are not read"
    )


VALUES = ("const", "default", "enum", "examples")
"""Keywords whose arguments are values and no schemas."""


def _references(schema: Schema) -> Iterator[str]:
    """Yield the references in a schema, but for those below an `$id`, which have another base."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for name, part in schema.items():
        if name not in VALUES and not (isinstance(part, dict) and "$id" in part):
            yield from _references(part)
