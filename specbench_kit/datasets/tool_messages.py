"""Conversations with tools: calls and results as messages, in the form of OpenAI's API.

A conversation with calls is recorded: each turn follows the recorded messages, and not the answers
that the model under test gave, since the results of tools belong to the recorded calls.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.rows import (
    SYSTEM_ROLES,
    USER_ROLES,
    Message,
    messages_of,
    role_of,
    text_of,
)

TOOL_ROLES = ("tool", "function")
ANSWERING = ("assistant", "gpt", "model")
NO_WORDS = "-"
"""Stands for what a turn says where a tool returned nothing."""


class RecordedTurns(NamedTuple):
    """The turns of a recorded conversation: what is said in each, and its messages as JSON."""

    turns: tuple[str, ...]
    script: tuple[str, ...]


def recorded_turns(value: Any) -> RecordedTurns | None:
    """Return the turns of a conversation with calls of tools; None for any other.

    A turn is everything up to an answer of the model. Raise ValueError for a call that names no
    function.
    """
    messages = messages_of(value)
    if not any(message.get("tool_calls") or role_of(message) in TOOL_ROLES for message in messages):
        return None
    turns: list[str] = []
    script: list[str] = []
    part: list[JsonObject] = []
    for message in messages:
        role = role_of(message)
        if role in SYSTEM_ROLES and not part and not script:
            continue  # `system_text` returns what the system says first
        if role in ANSWERING and _has_words(part):
            turns.append(_words(part))
            script.append(json.dumps(part, ensure_ascii=False))
            part = []
        part.append(_plain_form(message, role))
    if _has_words(part):  # the model has the last word
        turns.append(_words(part))
        script.append(json.dumps(part, ensure_ascii=False))
    return RecordedTurns(tuple(turns), tuple(script))


def _has_words(part: Sequence[JsonObject]) -> bool:
    return any(message["role"] != "assistant" for message in part)


def _words(part: Sequence[JsonObject]) -> str:
    said = [message["content"] for message in part if message["role"] != "assistant"]
    return "\n".join(said).strip() or NO_WORDS


def _plain_form(message: Message, role: str) -> JsonObject:
    """Return a message in the form that chat templates read: arguments of calls are objects."""
    has_text = message.get("content", message.get("value")) is not None
    content = text_of(message) if has_text else ""
    if not isinstance(content, str):
        raise ValueError(f"a message must be a text, not {content!r}")
    if role in TOOL_ROLES:
        known = {name: message[name] for name in ("tool_call_id", "name") if message.get(name)}
        return {"role": "tool", "content": content, **known}
    plain = "user" if role in USER_ROLES else "assistant" if role in ANSWERING else role
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return {"role": plain, "content": content, **({"tool_calls": calls} if calls else {})}


def _call(call: Any) -> JsonObject:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"a call of a tool names no function: {call!r}")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ValueError(f"the arguments of a call are no JSON: {arguments!r}") from error
    known = {"id": call["id"]} if call.get("id") else {}
    return {
        **known,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def tools_text(value: Any) -> str:
    """Return the descriptions of tools, a list or its JSON text, as JSON in OpenAI's form; "" for
    none.

    Raise ValueError for anything else.
    """
    if not value:
        return ""
    tools = json.loads(value) if isinstance(value, str) else value
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("'tools' must be a list of objects, or its JSON text")
    whole = [
        tool if "function" in tool else {"type": "function", "function": tool} for tool in tools
    ]
    if not all(isinstance(tool["function"].get("name"), str) for tool in whole):
        raise ValueError("a tool of 'tools' has no name")
    return json.dumps(whole, ensure_ascii=False)


def plain_messages(
    messages: Sequence[JsonObject], tools: Sequence[JsonObject]
) -> list[dict[str, str]]:
    """Return a conversation for a chat template that knows no tools: descriptions in the system's
    message, calls as JSON, and results as what the user says.
    """
    said = list(_said(messages))
    if tools:
        described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        offer = (
            f"You can call these functions:\n{described}\nTo call one, answer with JSON alone, as in "
            '{"name": "function", "arguments": {"argument": "value"}}'
        )
        own = said.pop(0)["content"] + "\n\n" if said and said[0]["role"] == "system" else ""
        said.insert(0, {"role": "system", "content": own + offer})
    merged: list[dict[str, str]] = []
    for message in said:
        # Results of several calls follow each other, where templates want turns to alternate.
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += "\n" + message["content"]
        else:
            merged.append(message)
    return merged


def _said(messages: Sequence[JsonObject]) -> Iterator[dict[str, str]]:
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            yield {"role": "user", "content": f"Result: {content}"}
            continue
        calls = [
            json.dumps(call["function"], ensure_ascii=False)
            for call in message.get("tool_calls", ())
        ]
        yield {
            "role": str(message["role"]),
            "content": "\n".join([content, *calls] if content else calls or [""]),
        }


def with_texts_of_arguments(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages as OpenAI's API takes them: the arguments of a call are a JSON text."""

    def call(one: Mapping[str, Any]) -> JsonObject:
        function = one["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**one, "function": {**function, "arguments": text}}

    return [
        {**message, "tool_calls": [call(one) for one in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]
