"""Calls of tools in texts: which characters they consist of, and whether they are valid."""

import pytest

from specbench_kit.datasets.tool_calls import CalledTool, CallReader, Tools, kinds_of, stands_in

S, C, N, T = "structure", "copied argument", "other argument", "free text"


@pytest.mark.parametrize(
    "parts",
    [
        [(S, '{"name": "f", "arguments": {"a": "'), (C, "Oslo"), (S, '"}}')],
        [(S, '{"name": "f", "arguments": {"a": "'), (N, "Rom"), (S, '"}}')],
        [(S, '{"name":"f","arguments":{"n":'), (C, "12"), (S, ',"b":'), (N, "true"), (S, "}}")],
        [(S, '{"name":"f","arguments":{"l":["'), (C, "Oslo"), (S, '",'), (N, "7"), (S, "]}}")],
        [(S, '{"arguments":{"deep":{"x":'), (N, "7"), (S, '}},"name":"Oslo"}')],
        # What comes before a call, and what follows it, belongs to no call.
        [(T, "Hm "), (S, '{"name":"f"}'), (T, " ok")],
        # A list of calls, and a call that the limit cut short within a value.
        [(S, '[{"name":"f","arguments":{"a":'), (N, "1"), (S, '}},{"name":"g"}]')],
        [(S, '{"arguments":{"a":"'), (N, "Os")],
        # JSON that is no call is free text.
        [(T, '{"city": "Oslo"}')],
    ],
)
def test_the_kind_of_every_character_is_told_by_the_parser(parts: list[tuple[str, str]]) -> None:
    text = "".join(part for _, part in parts)
    expected = [kind for kind, part in parts for _ in part]
    assert kinds_of(text, "from Oslo, 12 times") == expected


def test_the_marks_of_a_template_belong_to_the_call() -> None:
    text = 'I look.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    reader = CallReader(text)
    assert [text[begin:end] for begin, end in reader.structure] == [text[8:]]
    assert [text[call.begin : call.end] for call in reader.calls] == [text[20:50]]


def test_a_value_is_copied_only_as_a_whole() -> None:
    assert stands_in("824", "train IC 824")
    assert not stands_in("82", "train IC 824")
    assert stands_in('say \\"no\\"', 'They say "no".')
    assert not stands_in(" ", "a b")


TOOLS = Tools(
    [
        {
            "function": {
                "name": "f",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}},
                    "required": ["a"],
                },
            }
        },
        {"function": {"name": "g", "parameters": {"unevaluatedItems": False}}},
    ]
)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', True),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', True),
        ('{"name": "f", "parameters": {"a": 1}}', True),
        ('{"function": {"name": "f", "arguments": {"a": 1}}}', True),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', True),
        ('[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', True),
        ('{"name": "f", "arguments": {"a": "1"}}', False),
        ('{"name": "f", "arguments": {}}', False),
        ('{"name": "h", "arguments": {}}', False),
        ('{"name": "f", "arguments": {"a": 1}', False),
        ('{"name": "f", "arguments": {"a": 1,,}}', False),
        ('{"name": "f", "arguments": {"a": 1}}\n{"name": "f", "arguments": [1]}', False),
        ("The answer is 3.", None),
    ],
)
def test_a_call_is_valid_by_the_tools_of_its_conversation(text: str, valid: bool | None) -> None:
    assert TOOLS.valid_text(text) is valid


def test_arguments_may_be_a_text_or_an_object() -> None:
    assert TOOLS.is_valid(CalledTool("f", '{"a": 1}'))
    assert not TOOLS.is_valid(CalledTool("f", '{"a": 1'))
    # A schema that is not read asserts nothing here, but there is such a tool.
    assert TOOLS.is_valid(CalledTool("g", ""))
