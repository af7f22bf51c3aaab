"""Calls of tools in a model's text: which they are, if they are valid, and what each character is.

Models write a call as a JSON object with the function's name and its arguments, alone, in a list or
between the marks of their chat template. The reader takes what a stop or a fault cut short as far
as it goes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.json_schema import JsonSchema, parse_json
from specbench_kit.core.typed_json import JsonObject

Kind = Literal["structure", "copied argument", "other argument", "free text"]
KINDS: tuple[Kind, ...] = ("structure", "copied argument", "other argument", "free text")
"""What a part of an answer is: the marks, keys and names of calls; the value of an argument that
stands in the context; another value; or what belongs to no call.
"""
NAMES = ("name", "function", "tool")
ARGUMENTS = ("arguments", "parameters", "args", "input")
CALL = re.compile(
    r"(?:<\|?tool_calls?\|?>|\[TOOL_CALLS\]|<function_call>)\s*(?=[{\[])"
    rf'|(?=[{{\[]\s*(?:{{\s*)?"(?:{"|".join((*NAMES, *ARGUMENTS))})"\s*:)'
)
"""Where a call begins: behind a mark, or with the name or the arguments of a call."""
END = re.compile(r"\s*(?:<\|?/tool_calls?\|?>|</function_call>)")
PIECE = re.compile(r'\s+|[{}\[\],:]|"(?:[^"\\]|\\.)*"?|[-+.\w]+', re.DOTALL)
"""A piece of JSON; a text without its end is one too."""


class TextCall(NamedTuple):
    """A call in a text: where its JSON begins and ends."""

    begin: int
    end: int


@dataclass
class _Level:
    """An open object or list: the last key, whether a value is next, and whether it is part of the
    arguments.
    """

    is_object: bool
    in_arguments: bool
    key: str = ""
    is_value_next: bool = False


@dataclass
class CallReader:
    """Reads the calls of one text: where they are, and which of their characters are values of
    arguments.
    """

    text: str
    calls: list[TextCall] = field(default_factory=list)
    structure: list[tuple[int, int]] = field(default_factory=list)
    values: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        place = 0
        while found := CALL.search(self.text, place):
            begin = found.end()
            end = self._read(begin)
            self.calls.append(TextCall(begin, end))
            mark = END.match(self.text, end)
            place = max(mark.end() if mark else end, found.start() + 1)
            self.structure.append((found.start(), place))

    def _read(self, begin: int) -> int:
        """Read the JSON from a place on, and return where it ends."""
        levels: list[_Level] = []
        place = begin
        while piece := PIECE.match(self.text, place):
            place = piece.end()
            mark = piece[0]
            if mark.isspace():
                continue
            if mark in "{[":
                within = bool(levels) and (levels[-1].in_arguments or (levels[-1].key in ARGUMENTS))
                levels.append(_Level(mark == "{", within, is_value_next=mark == "["))
            elif mark in "}]":
                if levels:
                    levels.pop()
                if not levels:
                    return place
            elif not levels:
                return piece.start()
            elif mark == ":":
                levels[-1].is_value_next = True
            elif mark == ",":
                levels[-1].is_value_next = not levels[-1].is_object
            elif levels[-1].is_value_next:
                if levels[-1].in_arguments or levels[-1].key in ARGUMENTS:
                    self.values.append(_without_quotes(self.text, piece.start(), place))
            else:
                levels[-1].key = mark.strip('"')
        return place


def _without_quotes(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the place of a value without the marks of a text, which are structure."""
    if text[begin] != '"':
        return begin, end
    return begin + 1, end - (end - begin > 1 and text[end - 1] == '"')


def kinds_of(text: str, context: str) -> list[Kind]:
    """Return the kind of each character of an answer that follows a context."""
    reader = CallReader(text)
    kinds: list[Kind] = ["free text"] * len(text)
    for begin, end in reader.structure:
        kinds[begin:end] = ["structure"] * (end - begin)
    for begin, end in reader.values:
        is_copied = stands_in(text[begin:end], context)
        kind: Kind = "copied argument" if is_copied else "other argument"
        kinds[begin:end] = [kind] * (end - begin)
    return kinds


def stands_in(value: str, context: str) -> bool:
    """Return True if a value, as JSON writes it or as it reads, stands in the context as a whole."""
    try:
        read = str(parse_json(f'"{value}"'))
    except ValueError:
        read = value
    return any(
        re.search(rf"(?<!\w){re.escape(one.strip())}(?!\w)", context) is not None
        for one in dict.fromkeys((value, read))
        if one.strip()
    )


class CalledTool(NamedTuple):
    """The name of a called function, and its arguments as a text or as a value."""

    name: str
    arguments: object


class Tools:
    """The tools of a conversation, by whose descriptions calls are valid or not."""

    def __init__(self, tools: Sequence[JsonObject]) -> None:
        self._schemas: dict[str, JsonSchema | None] = {}
        for tool in tools:
            function = tool.get("function", tool)
            try:
                schema = JsonSchema.of(function.get("parameters") or {})
            except SkitError:  # what the schema asserts is not known, only that there is a tool
                schema = None
            self._schemas[str(function["name"])] = schema

    def is_valid(self, call: CalledTool) -> bool:
        """Return whether a call names one of the tools and has the arguments that it takes."""
        arguments = call.arguments
        if isinstance(arguments, str):
            try:
                arguments = parse_json(arguments or "{}")
            except ValueError:
                return False
        schema = self._schemas.get(call.name)
        if call.name not in self._schemas or not isinstance(arguments, dict):
            return False
        return schema is None or schema.allows(arguments)

    def valid_text(self, text: str) -> bool | None:
        """Return whether all calls in a text are valid; None if it holds none."""
        reader = CallReader(text)
        if not reader.calls:
            return None
        return all(
            self._is_valid_json(text[call.begin : call.end].strip()) for call in reader.calls
        )

    def _is_valid_json(self, text: str) -> bool:
        try:
            value = parse_json(text)
        except ValueError:
            return False
        calls = list(_called(value))
        return bool(calls) and all(call is not None and self.is_valid(call) for call in calls)


def is_arguments(text: str) -> bool:
    """Return whether the arguments of a call are JSON."""
    try:
        parse_json(text or "{}")
    except ValueError:
        return False
    return True


def holds_whole_calls(text: str) -> bool:
    """Return whether every call in a text is JSON to its end."""
    return all(is_arguments(text[call.begin : call.end]) for call in CallReader(text).calls)


def _called(value: object) -> Iterator[CalledTool | None]:
    """Yield the calls in a JSON value, None for each part that is no call."""
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, Mapping):
            yield None
            continue
        inner = part.get("function")
        own = inner if isinstance(inner, Mapping) else part
        name = next((own[key] for key in NAMES if isinstance(own.get(key), str)), None)
        arguments: object = next((own[key] for key in ARGUMENTS if key in own), {})
        yield CalledTool(name, arguments) if name else None
