"""Fields of requests that servers refuse: left out, or sent under the name that a server knows."""

import re
from collections.abc import Collection, Iterator, Mapping

from specbench_kit.core.typed_json import JsonObject

RequestBody = JsonObject
"""The JSON object of a request, in the form of whichever server it is sent to."""
NEEDED = ("model", "stream", "prompt", "messages", "inputs", "text")
"""Fields without which the named model streams no answer to the prompt."""

AS_A_WHOLE = ("response_format", "structured_outputs", "guided_json", "json_schema", "grammar")
"""Fields with a JSON schema, no part of which can be left out."""


def field_names(body: RequestBody, prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields that may be left out, those inside others as
    `sampling_params.min_p`.
    """
    for name, value in body.items():
        if prefix or name not in NEEDED:
            yield f"{prefix}{name}"
        if isinstance(value, Mapping) and name not in AS_A_WHOLE:
            yield from field_names(value, f"{prefix}{name}.")


def without_fields(body: RequestBody, names: Collection[str], prefix: str = "") -> RequestBody:
    """Return a body without the named fields."""
    return {
        name: without_fields(value, names, f"{prefix}{name}.")
        if isinstance(value, Mapping)
        else value
        for name, value in body.items()
        if f"{prefix}{name}" not in names
    }


def with_newer_names(body: RequestBody, newer: Mapping[str, str]) -> RequestBody:
    """Return a body whose fields have their newer names where there are some."""
    return {newer.get(name, name): value for name, value in body.items()}


def named_in(words: str, names: Collection[str]) -> list[str]:
    """Return those fields that a server's words name."""
    return [
        name
        for name in names
        if re.search(rf"(?<![\w.]){re.escape(name.rpartition('.')[2])}\b", words)
    ]
