"""Documents of other programs turned into typed records: a wrong field is a ValueError in one plain line.

Describe what a file holds as a `msgspec.Struct` with annotated fields; `Count` and `Number` are bounded numbers. Then
`decode(Struct, text)` reads JSON text, and `convert(Struct, document)` checks what a TOML or JSON parser returned.
Fields that the struct does not have are passed over; `class ...(Struct, forbid_unknown_fields=True)` refuses them.
NaN and infinities are no JSON, and no `Number`. The caller adds which file and line it was, and what the user can do:

    try:
        card = decode(Card, path.read_bytes())
    except ValueError as error:
        raise SkitError(f"{path}: {error}; write the card again") from error
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")
JsonObject = Mapping[str, Any]
"""A parsed JSON or TOML object whose fields are not described by a struct, such as a row of a summary."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number = Annotated[float, msgspec.Meta(gt=-1e15, lt=1e15)]
"""A finite number. The bounds lie beyond every duration in seconds, so that sums and squares stay finite too."""
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
    """Return the record of type `kind` that a JSON text holds; ValueError names the field that is wrong."""
    with _plain_errors():
        return msgspec.json.decode(text, type=kind)


def convert(kind: type[T], document: object) -> T:
    """Return the record of type `kind` made of parsed JSON or TOML; ValueError names the field that is wrong."""
    with _plain_errors():
        return msgspec.convert(document, kind)


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error))) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _in_words(message: str) -> str:
    """Return a message of msgspec in plain words, with the field first.

    ``Expected `int`, got `str` - at `$.rounds[0].drafted``` becomes ``rounds[0].drafted must be a whole number, not
    text``.
    """
    problem, _, path = message.partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if match := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", problem):
        name = f"{field}.{match[2]}" if field else match[2]
        return f"{name} is {'missing' if match[1].startswith('missing') else 'unknown'}"
    if match := re.fullmatch(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*)", problem):
        kinds, rejected, bound = (match[1] or "").split(" | "), match[2], match[3]
        allowed = " or ".join(KINDS.get(kind, kind) for kind in kinds)
        wrong = (
            f", not {'a decimal number' if rejected == 'float' else KINDS.get(rejected, rejected)}" if rejected else ""
        )
        return f"{field or 'the document'} must be {allowed}{bound}{wrong}"
    if match := re.fullmatch(r"Invalid enum value (.*)", problem):
        return f"{field} must be another word, not {match[1]}"
    return f"{field}: {problem}" if field else problem
