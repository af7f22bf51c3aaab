"""JSON texts, and whether they follow a JSON schema.

The keywords are those of drafts 7 to 2020-12, read as the specification says: `format` and keywords
that begin with `x-` only describe. A schema with an assertion that is not read is refused, since
its values could not be told apart.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import isfinite
from typing import Any, TypeAlias
from urllib.parse import unquote

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line

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


def _equal(one: JsonValue, other: JsonValue) -> bool:
    """Return True for equal values; unlike in Python, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return bool(one == other)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: Mapping[str, Callable[[JsonValue], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == value // 1,
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _is_multiple(value: float, step: float) -> bool:
    # As decimal fractions, in which 0.3 is three times 0.1.
    return isfinite(value) and Fraction(str(value)) % Fraction(str(step)) == 0


def _all_different(values: list[JsonValue]) -> bool:
    return not any(
        _equal(one, other) for number, one in enumerate(values) for other in values[:number]
    )


LIMITS: Mapping[str, tuple[str, Callable[[JsonValue, JsonValue], bool]]] = {
    "minimum": ("number", lambda value, limit: value >= limit),
    "maximum": ("number", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("number", lambda value, limit: value > limit),
    "exclusiveMaximum": ("number", lambda value, limit: value < limit),
    "multipleOf": ("number", _is_multiple),
    "minLength": ("string", lambda value, limit: len(value) >= limit),
    "maxLength": ("string", lambda value, limit: len(value) <= limit),
    "pattern": ("string", lambda value, pattern: re.search(pattern, value) is not None),
    "minItems": ("array", lambda value, limit: len(value) >= limit),
    "maxItems": ("array", lambda value, limit: len(value) <= limit),
    "uniqueItems": ("array", lambda value, asked: not asked or _all_different(value)),
    "minProperties": ("object", lambda value, limit: len(value) >= limit),
    "maxProperties": ("object", lambda value, limit: len(value) <= limit),
    "required": ("object", lambda value, names: all(name in value for name in names)),
    "dependentRequired": (
        "object",
        lambda value, needs: all(
            set(names) <= value.keys() for name, names in needs.items() if name in value
        ),
    ),
}
"""Assertions that need nothing but their own argument, each of values of one type alone."""
BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
)
"""Keywords whose argument is a schema; that of `items` may be a list of them, in older drafts."""
OTHERS = ("type", "enum", "const", "$ref", "minContains", "maxContains")
DESCRIBING = (
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "contentEncoding",
    "contentMediaType",
)
READ = frozenset((*LIMITS, *BY_NAME, *LISTS, *SINGLE, *OTHERS, *DESCRIBING))


class JsonSchema:
    """A schema that values are held against.

    Raise SkitError for a text that is no schema, and for one with an assertion that is not read.
    """

    def __init__(self, text: str) -> None:
        try:
            self._root: Schema = parse_json(text)
        except ValueError as error:
            raise SkitError(f"a JSON schema is not valid JSON: {first_line(error)}") from error
        for schema in _schemas(self._root):
            _require_readable(schema)
            if isinstance(reference := _object(schema).get("$ref"), str):
                self._referred(reference)

    @classmethod
    def of(cls, schema: Schema) -> "JsonSchema":
        """Return the schema that an object, or a boolean, states."""
        return cls(json.dumps(schema))

    def allows(self, value: JsonValue) -> bool:
        """Return whether a value follows the schema."""
        try:
            return self._holds(self._root, value)
        except RecursionError as error:
            raise SkitError("the JSON schema refers to itself without end") from error

    def _holds(self, schema: Schema, value: JsonValue) -> bool:
        if isinstance(schema, bool):
            return schema
        return (
            _has_type(schema, value)
            and all(
                check(value, schema[name])
                for name, (kind, check) in LIMITS.items()
                if name in schema and TYPES[kind](value)
            )
            and ("const" not in schema or _equal(schema["const"], value))
            and ("enum" not in schema or any(_equal(one, value) for one in schema["enum"]))
            and ("$ref" not in schema or self._holds(self._referred(schema["$ref"]), value))
            and self._holds_together(schema, value)
            and (not isinstance(value, list) or self._holds_items(schema, value))
            and (not isinstance(value, dict) or self._holds_properties(schema, value))
        )

    def _holds_together(self, schema: Schema, value: JsonValue) -> bool:
        """Check what combines other schemas."""

        def holding(name: str) -> int:
            return sum(self._holds(part, value) for part in schema[name])

        if "allOf" in schema and holding("allOf") < len(schema["allOf"]):
            return False
        if "anyOf" in schema and not holding("anyOf"):
            return False
        if "oneOf" in schema and holding("oneOf") != 1:
            return False
        if "not" in schema and self._holds(schema["not"], value):
            return False
        if "if" not in schema:
            return True
        branch = "then" if self._holds(schema["if"], value) else "else"
        return self._holds(schema.get(branch, True), value)

    def _holds_items(self, schema: Schema, items: list[JsonValue]) -> bool:
        rest = schema.get("items", True)
        first = schema.get("prefixItems", [])
        if isinstance(rest, list):  # a tuple, as drafts before 2020-12 write it
            first, rest = rest, schema.get("additionalItems", True)
        if not all(self._holds(part, item) for part, item in zip(first, items, strict=False)):
            return False
        if not all(self._holds(rest, item) for item in items[len(first) :]):
            return False
        if "contains" not in schema:
            return True
        count = sum(self._holds(schema["contains"], item) for item in items)
        return bool(schema.get("minContains", 1) <= count <= schema.get("maxContains", count))

    def _holds_properties(self, schema: Schema, values: dict[str, JsonValue]) -> bool:
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name, value in values.items():
            own = [properties[name]] if name in properties else []
            own += [part for pattern, part in patterns.items() if re.search(pattern, name)]
            parts = own or [schema.get("additionalProperties", True)]
            if not all(self._holds(part, value) for part in parts):
                return False
            if not self._holds(schema.get("propertyNames", True), name):
                return False
        return True

    def _referred(self, reference: str) -> Schema:
        """Return the schema within this one that a reference such as `#/$defs/name` names."""
        found = self._root
        try:
            start, *names = reference.split("/")
            if start != "#":
                raise KeyError(start)
            for name in map(unquote, names):
                key = name.replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SkitError(
                f"a JSON schema refers to '{reference}', which is not in it: references to other files are not read"
            ) from error
        return found


def _object(schema: Schema) -> Mapping[str, Schema]:
    return schema if isinstance(schema, dict) else {}


def _schemas(schema: Schema) -> Iterator[Schema]:
    """Yield a schema and all schemas within it."""
    yield schema
    for name, argument in _object(schema).items():
        inner: list[Schema] = []
        if name in BY_NAME:
            inner = list(_object(argument).values())
        elif name in (*LISTS, *SINGLE):
            inner = argument if isinstance(argument, list) else [argument]
        for part in inner:
            yield from _schemas(part)


def _has_type(schema: Schema, value: JsonValue) -> bool:
    stated = schema.get("type", list(TYPES))
    return any(TYPES[name](value) for name in ([stated] if isinstance(stated, str) else stated))


ARGUMENTS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    "multipleOf": (int, float),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (int, float),
    ),
    **dict.fromkeys(("minContains", "maxContains"), (int, float)),
    **dict.fromkeys((*LISTS, "required", "enum"), (list,)),
    **dict.fromkeys((*BY_NAME, "dependentRequired"), (dict,)),
    "uniqueItems": (bool,),
    **dict.fromkeys(("pattern", "$ref"), (str,)),
    "type": (str, list),
}


def _require_readable(schema: Schema) -> None:
    """Raise SkitError for a schema with a keyword that is not read, or with a wrong argument."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise SkitError(f"a JSON schema is an object, true or false, not a {type(schema).__name__}")
    for name, argument in schema.items():
        # Extensions such as "x-guidance" tell a library how to write, not what is valid.
        if name not in READ and not name.startswith("x-"):
            raise SkitError(f"a JSON schema has the keyword '{name}', which is not read here")
        kinds = ARGUMENTS.get(name)
        is_boolean = isinstance(argument, bool) and kinds != (bool,)
        if kinds and (not isinstance(argument, kinds) or is_boolean):
            raise SkitError(f"a JSON schema has a wrong '{name}': {argument!r}")
    if schema.get("multipleOf", 1) <= 0:
        raise SkitError(f"a JSON schema has a wrong 'multipleOf': {schema['multipleOf']!r}")
    names = schema.get("type", [])
    for name in [names] if isinstance(names, str) else names:
        if name not in TYPES:
            raise SkitError(f"a JSON schema has the type {name!r}, where {', '.join(TYPES)} are")
    for pattern in (schema.get("pattern", ""), *schema.get("patternProperties", {})):
        try:
            re.compile(pattern)
        except re.error as error:
            raise SkitError(
                f"a JSON schema has a pattern that is not read, '{pattern}': {error}"
            ) from error
