"""Documents of other programs turned into typed records: a wrong field is a ValueError in one plain
line.

Describe what a file holds as a `msgspec.Struct` with annotated fields; `Count` and `Number` are bounded numbers. Then
`decode(Struct, text)` reads JSON text, and `convert(Struct, document)` checks what a TOML or JSON parser returned.
Fields that the struct does not have are passed over; `class ...(Struct, forbid_unknown_fields=True)` refuses them.
NaN and infinities are no JSON, and no `Number`. The caller adds which file and line it was, and what the user can do:

    try:
        card = decode(Card, path.read_bytes())
    except ValueError as error:
        raise SkitError(f"{path}: {error}; write the card again") from error
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from sys import float_info
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from specbench_kit.core.errors import did_you_mean

T = TypeVar("T")
JsonObject = Mapping[str, Any]
"""A parsed JSON or TOML object whose fields are not described by a struct, such as a row of a
summary.
"""
JsonValue: TypeAlias = (
    "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
"""Whatever JSON can hold."""
Written: TypeAlias = Mapping[str, JsonValue]
"""An object of a file in the form in which it is written, such as what `stated` returns of a
struct.
"""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number = Annotated[float, msgspec.Meta(gt=-1e15, lt=1e15)]
"""A finite number. The bounds lie beyond every duration in seconds, so that sums and squares stay
finite too.
"""
Amount = Annotated[float, msgspec.Meta(ge=0, le=float_info.max)]
"""A finite number from 0 up; the upper bound refuses infinities."""
Rate = Annotated[float, msgspec.Meta(ge=1, le=float_info.max)]
"""A finite number from 1 up, of bytes or operations per second."""
SHOWN = 40
"""Characters of a wrong value that a message repeats."""
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "an object",
}
"""The words of messages for msgspec's names of kinds."""


def decode(kind: type[T], text: str | bytes) -> T:
    """Return the record of type `kind` that a JSON text holds; ValueError names the field that is
    wrong.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError):
        # The standard library is slower, but says what is wrong with damaged JSON, and reads half a
        # surrogate pair, with which an answer ends that was cut off inside an emoji.
        return convert(kind, parse(text))


def convert(kind: type[T], document: object) -> T:
    """Return the record of type `kind` made of parsed JSON or TOML; ValueError names the field that
    is wrong.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(error, kind, document)) from error


def stated(content: object) -> Any:
    """Return what a file holds of typed records, by themselves or within lists and objects.

    A field that is not known, which is None, is left out unless the record's `ALWAYS` names it.
    """
    if isinstance(content, msgspec.Struct):
        always = getattr(content, "ALWAYS", ())
        return {
            name: stated(value)
            for name, value in msgspec.structs.asdict(content).items()
            if value is not None or name in always
        }
    if isinstance(content, Mapping):
        return {name: stated(value) for name, value in content.items()}
    return list(map(stated, content)) if isinstance(content, list | tuple) else content


def with_unknown(kind: Any, document: Any) -> Any:
    """Return a document with null, or an empty list or object, for every field of type `kind` that
    it lacks.

    A field that allows none of these stays missing. That is how files are read that were written
    before those fields were: what they do not say is not known.
    """
    return _with_unknown(inspect.type_info(kind), document)


def _with_unknown(node: inspect.Type | inspect.Metadata, document: Any) -> Any:
    node = _plain(node)
    if isinstance(node, inspect.UnionType):
        options = [_plain(option) for option in node.types]
        structs = [option for option in options if isinstance(option, inspect.StructType)]
        others = [option for option in options if not isinstance(option, inspect.NoneType)]
        node = structs[0] if structs and isinstance(document, dict) else others[0]
    if isinstance(node, inspect.StructType) and isinstance(document, dict):
        known = {field.encode_name: field for field in node.fields}
        lacking = {
            name: empty
            for name, field in known.items()
            if name not in document
            and field.required
            and (empty := _empty(field.type)) is not UNKNOWN
        }
        said = {
            name: _with_unknown(known[name].type, value)
            for name, value in document.items()
            if name in known
        }
        return {**document, **said, **lacking}
    if isinstance(node, inspect.DictType) and isinstance(document, dict):
        return {name: _with_unknown(node.value_type, value) for name, value in document.items()}
    if isinstance(node, inspect.ListType) and isinstance(document, list):
        return [_with_unknown(node.item_type, item) for item in document]
    return document


def _plain(node: inspect.Type | inspect.Metadata) -> inspect.Type:
    return node.type if isinstance(node, inspect.Metadata) else node


def _empty(node: inspect.Type | inspect.Metadata) -> object:
    """Return what says nothing in a field of this type; UNKNOWN if there is no such value."""
    node = _plain(node)
    options = (
        [_plain(option) for option in node.types] if isinstance(node, inspect.UnionType) else [node]
    )
    if any(isinstance(option, inspect.NoneType | inspect.AnyType) for option in options):
        return None
    if isinstance(options[0], inspect.ListType):
        return []
    return {} if isinstance(options[0], inspect.DictType) else UNKNOWN


UNKNOWN = object()


def parse(text: str | bytes) -> Any:
    """Return what a JSON text holds, of whatever type; ValueError if it is damaged, or holds NaN or
    an infinity.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=whole_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def whole_number(digits: str) -> int | str:
    """Return a whole number of a JSON text; one with too many digits for an int stays text, so that
    it can be skipped.

    For `parse_int` of Python's own parser, which otherwise refuses the whole text.
    """
    try:
        return int(digits)
    except ValueError:
        return digits


def shown(value: object) -> str:
    """Return a value as its file has it, cut to `SHOWN` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _in_words(error: Exception, kind: object, document: object) -> str:
    """Return a message of msgspec with the field first, and with the wrong value.

    ``Expected `int`, got `str` - at `$.rounds[0].drafted`` becomes
    ``rounds[0].drafted must be a whole number, not "3"``.
    """
    problem, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    keys = re.findall(r"([^.\[\]]+)|\[(\d+)\]", field)
    if match := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", problem):
        name = f"{field}.{match[2]}" if field else match[2]
        if match[1].startswith("missing"):
            return f"{name} is missing"
        # Below a table with free keys msgspec does not say which key it was, so that the way there
        # is not known.
        known = [] if "..." in field else _known_fields(kind, [key for key, _ in keys])
        return f"{name} is unknown{did_you_mean(match[2], known)}" + (
            f"; known: {', '.join(known)}" if known else ""
        )
    value = document
    for key, row in keys:
        value = (
            value.get(key)
            if isinstance(value, dict)
            else value[int(row)]
            if isinstance(value, list)
            else None
        )
    if match := re.fullmatch(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*)", problem):
        allowed = " or ".join(KINDS.get(kind, kind) for kind in match[1].split(" | "))
        wrong = match[2]
        bound = match[3]
        # Below a table with free keys msgspec says [...] and not which key it was: then no value
        # can be shown.
        instead = KINDS.get(wrong, wrong) if "..." in field else shown(value)
        return f"{field or 'the document'} must be {allowed}{bound}" + (
            f", not {instead}" if instead else ""
        )
    if problem.startswith("Invalid enum value"):
        return f"{field} must be {_valid_words(kind, [key for key, _ in keys])}, not {shown(value)}"
    return f"{field}: {problem}" if field else problem


def _valid_words(kind: object, keys: Iterable[str]) -> str:
    """Return the words that a field may hold; `keys` lead to it as `_type_of` takes them."""
    node = _type_of(kind, keys)
    return (
        " or ".join(map(shown, node.values))
        if isinstance(node, inspect.LiteralType)
        else "another word"
    )


def _known_fields(kind: object, keys: Iterable[str]) -> list[str]:
    """Return the fields that an object may have; `keys` lead to it as `_type_of` takes them."""
    return [field.encode_name for field in getattr(_type_of(kind, keys), "fields", ())]


def _type_of(kind: object, keys: Iterable[str]) -> Any:
    """Return the type of a field; `keys` lead from a record of type `kind` to it, empty for list
    rows.
    """
    node: Any = inspect.type_info(kind)
    for key in (*keys, None):
        while isinstance(node, inspect.Metadata | inspect.UnionType):
            options = [node.type] if isinstance(node, inspect.Metadata) else node.types
            node = next(option for option in options if not isinstance(option, inspect.NoneType))
        if key is None or isinstance(node, inspect.LiteralType):
            break
        types = {field.encode_name: field.type for field in getattr(node, "fields", ())}
        node = (
            types.get(key) or getattr(node, "item_type", None) or getattr(node, "value_type", None)
        )
    return node


def flat(content: Mapping[str, T], prefix: str = "") -> dict[str, T]:
    """Return `{"a.b": 1}` for `{"a": {"b": 1}}`: every value that is not an object, by its dotted
    name.
    """
    values: dict[str, T] = {}
    for name, value in content.items():
        values |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{name}": value}
        )
    return values
