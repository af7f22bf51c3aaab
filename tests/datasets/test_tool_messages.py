"""Conversations with tools: their turns, and what a template without tools gets."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import write_rows

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.loading import load
from specbench_kit.datasets.toml_datasets import PromptTemplate
from specbench_kit.datasets.tool_calls import CalledTool, Tools
from specbench_kit.datasets.tool_messages import (
    plain_messages,
    recorded_turns,
    tools_text,
    with_texts_of_arguments,
)

TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
CALL = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be exact."},
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "Thanks. And 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
]


def roles(part: str) -> list[str]:
    return [message["role"] for message in json.loads(part)]


def test_a_turn_is_what_comes_before_an_answer_of_the_model() -> None:
    recorded = recorded_turns(MESSAGES)
    assert recorded is not None
    assert recorded.turns == ("What is 1 + 2?", "3", "Thanks. And 2 + 2?")
    # Each turn begins with the recorded answer to the one before; the last answer is the model's.
    assert [roles(part) for part in recorded.script] == [
        ["user"],
        ["assistant", "tool"],
        ["assistant", "user"],
    ]
    call = json.loads(recorded.script[1])[0]["tool_calls"][0]
    assert call["function"] == {"name": "add", "arguments": {"a": 1, "b": 2}}


def test_a_conversation_that_ends_with_a_result_has_one_more_turn() -> None:
    recorded = recorded_turns(MESSAGES[:4])
    assert recorded is not None
    assert recorded.turns == ("What is 1 + 2?", "3")


def test_a_conversation_without_calls_is_no_recorded_one() -> None:
    assert recorded_turns([message for message in MESSAGES if message["role"] == "user"]) is None
    assert recorded_turns("a text") is None


def test_a_file_in_openais_form_is_read(tmp_path: Path) -> None:
    row = {"id": "sum", "messages": MESSAGES, "tools": [TOOL]}
    body = {"custom_id": "batch", "body": {"messages": MESSAGES, "tools": json.dumps([TOOL])}}
    path = write_rows(tmp_path / "calls.jsonl", row, body, {"id": "plain", "prompt": "Hi"})
    dataset = load(str(path), data_dir=None, allow_sample=False, limit=None, seed=0)
    by_id = {prompt.id: prompt for prompt in dataset.prompts}
    for name in ("sum", "batch"):
        prompt = by_id[name]
        assert prompt.system == "Be exact."
        assert len(prompt.turns) == len(prompt.script) == 3
        assert json.loads(prompt.tools) == [{"type": "function", "function": TOOL}]
    assert (by_id["plain"].script, by_id["plain"].tools) == ((), "")
    other = [dict(message) for message in MESSAGES]
    other[4]["content"] = "It is three."
    changed = write_rows(tmp_path / "other.jsonl", {**row, "messages": other})
    again = load(str(changed), data_dir=None, allow_sample=False, limit=None, seed=0).prompts[0]
    assert again.turns == by_id["sum"].turns
    assert again.fingerprint != by_id["sum"].fingerprint


def test_a_definition_names_the_column_of_tools() -> None:
    template = PromptTemplate("i", "c", turn_columns=("said",), tools_column="tools")
    row = {"said": MESSAGES, "tools": [TOOL]}
    assert template.read_turns(row, 0) == ("What is 1 + 2?", "3", "Thanks. And 2 + 2?")
    assert len(template.script(row)) == 3


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tools": "add"}, "line 1: "),
        ({"tools": [{"description": "no name"}]}, "a tool of 'tools' has no name"),
        ({"tools": {"add": 1}}, "'tools' must be a list"),
        (
            {"messages": [*MESSAGES[:2], {"role": "assistant", "tool_calls": [{"function": 3}]}]},
            "names no function",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [
                {"function": {"name": "add", "arguments": "{"}}]}]},
            "arguments of a call are no JSON",
        ),
    ],
)  # fmt: skip
def test_what_is_no_tool_and_no_call_is_refused(
    row: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "calls.jsonl", {"messages": MESSAGES, **row})
    with pytest.raises(SkitError, match=reason):
        load(str(path), data_dir=None, allow_sample=False, limit=None, seed=0)


def test_a_template_without_tools_gets_them_as_texts() -> None:
    recorded = recorded_turns(MESSAGES)
    assert recorded is not None
    messages = [MESSAGES[0], *(m for part in recorded.script for m in json.loads(part))]
    plain = plain_messages(messages, json.loads(tools_text([TOOL])))
    assert [message["role"] for message in plain] == ["system", *["user", "assistant"] * 2, "user"]
    assert plain[0]["content"].startswith("Be exact.\n\nYou can call these functions:\n{")
    assert json.loads(plain[2]["content"]) == {"name": "add", "arguments": {"a": 1, "b": 2}}
    assert plain[3]["content"] == "Result: 3"


def test_a_server_gets_arguments_as_a_text() -> None:
    recorded = recorded_turns(MESSAGES)
    assert recorded is not None
    (message, _) = with_texts_of_arguments(json.loads(recorded.script[1]))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1, "b": 2}'


def bundled() -> tuple[Prompt, ...]:
    return load("tool-calls", data_dir=None, allow_sample=False, limit=None, seed=0).prompts


def test_the_bundled_conversations_have_tools_and_valid_calls() -> None:
    prompts = bundled()
    assert len(prompts) >= 12
    for prompt in prompts:
        assert 3 <= len(prompt.turns) <= 6
        tools = Tools(json.loads(prompt.tools))
        messages = [message for part in prompt.script for message in json.loads(part)]
        calls = [call["function"] for m in messages for call in m.get("tool_calls", ())]
        assert calls
        for call in calls:
            assert tools.is_valid(CalledTool(call["name"], call["arguments"])), prompt.id
