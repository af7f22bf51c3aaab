"""What arrives in one part of a chat's answer, whatever its server calls the field that it arrives
in.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from specbench_kit.core.typed_json import JsonObject

Delta = JsonObject
"""The new part of a chat's answer, in which every field of whatever name may hold tokens."""
REASONING = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "thinking_content",
    "reasoning_details",
    "thinking_blocks",
)
"""Fields of a model's thoughts. Some servers send the same thought in several of them, so that the
first one counts.
"""
THOUGHTS = ("thinking", "reasoning")
"""Types of those parts of a content that are thoughts; types such as `reasoning.text` begin with
one of them.
"""
DESCRIBING = ("role", "name", "provider_specific_fields", "annotations")
"""Fields that describe an answer and are no part of it."""
IDENTIFYING = ("id", "index", "type", "object", "format", "signature", "expires_at")
"""Fields, at any depth, that say of which kind a part is and where it belongs."""


class Parts(NamedTuple):
    """The texts of one part of an answer: the reply, the thoughts, and what came in any other
    field.

    Others are the names and arguments of tools, refusals, transcripts of speech and its sound, and
    what is not known yet: each of them is made of tokens of the model.
    """

    content: str = ""
    reasoning: str = ""
    other: str = ""


class CallDelta(NamedTuple):
    """What a delta brings of one call of a tool."""

    position: int
    name: str
    arguments: str


def calls_of(delta: Delta) -> Iterator[CallDelta]:
    """Yield what a delta brings of calls of tools, by their position in the answer."""
    calls = delta.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        position = call.get("index", number)
        name, arguments = (function.get(key) for key in ("name", "arguments"))
        yield CallDelta(
            position if isinstance(position, int) else number,
            name if isinstance(name, str) else "",
            arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else "",
        )


def parts_of(delta: Delta) -> Parts:
    """Return what a delta brings."""
    content, thoughts = _content(delta.get("content"))
    reasoning = next((text for name in REASONING if (text := _text(delta.get(name)))), "")
    known = ("content", *REASONING, *DESCRIBING)
    other = "".join(_text(value) for name, value in delta.items() if name not in known)
    return Parts(content, thoughts or reasoning, other)


def _content(value: object) -> tuple[str, str]:
    """Return the text of a content, which may be a list of parts, and the thoughts in it."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in value if isinstance(value, list) else [value]:
        kind = str(part.get("type")) if isinstance(part, dict) else ""
        (thoughts if kind.startswith(THOUGHTS) else texts).append(_text(part))
    return "".join(texts), "".join(thoughts)


def _text(value: object) -> str:
    return "".join(_leaves(value))


def _leaves(value: object) -> Iterator[str]:
    """Yield the texts at any depth of a value, in their order, without those that only identify
    it.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in IDENTIFYING:
                yield from _leaves(part)
