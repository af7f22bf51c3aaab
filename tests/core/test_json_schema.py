"""JSON schemas: which values follow one, and which schemas are refused."""

import json
import re
from typing import Any

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.core.json_schema import JsonSchema, parse_json

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "integer"}, [3, 3.0, -1], [3.5, True, "3", None]),
    ({"type": ["string", "null"]}, ["", None], [0, False]),
    ({"enum": [1, "a", [2]]}, [1, 1.0, "a", [2]], [True, [3], "b"]),
    ({"const": False}, [False], [0, None]),
    ({"minimum": 2, "exclusiveMaximum": 4}, [2, 3.9, "any text"], [1.9, 4]),
    ({"multipleOf": 0.1}, [0.3, 7], [0.25]),
    ({"minLength": 2, "pattern": "^a"}, ["ab", 1], ["a", "ba"]),
    ({"items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}, [[1, 2]], [[], [1, 1]]),
    ({"prefixItems": [{"type": "string"}], "items": False}, [["a"], []], [[1], ["a", 2]]),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [{"type": "string"}],
            "additionalItems": False,
        },
        [["a"]],
        [["a", 2]],
    ),
    (
        {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
        [{"a": 1}],
        [{"b": 1}],
    ),
    ({"contains": {"const": 1}, "maxContains": 1}, [[1, 2]], [[2], [1, 1]]),
    ({"required": ["a"]}, [{"a": 1}, "no object"], [{"b": 1}]),
    (
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
        [{"a": 1}, {}],
        [{"a": "1"}, {"b": 1}],
    ),
    (
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"const": 0}},
        [{"xa": 5, "b": 0}],
        [{"xa": "5"}, {"b": 5}],
    ),
    ({"propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {"b": 2}], [{"a": 1}]),
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["a", 3], [2]),
    ({"oneOf": [{"minimum": 1}, {"minimum": 3}]}, [2], [0, 4]),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [2], [0, 4]),
    ({"not": {"type": "null"}}, [0], [None]),
    ({"if": {"minimum": 3}, "then": {"multipleOf": 2}, "else": {"const": 1}}, [4, 1], [5, 2]),
    (TREE, [{"value": 1, "left": {"value": 2}}], [{"value": 1, "left": {}}, {"valu": 1}]),
    (True, [None, 1], []),
    (False, [], [None, 1]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case[0])[:40])
def test_a_schema_allows_what_follows_it_and_nothing_else(
    case: tuple[Any, list[Any], list[Any]],
) -> None:
    schema = JsonSchema(json.dumps(case[0]))
    assert [schema.allows(value) for value in case[1]] == [True] * len(case[1])
    assert [schema.allows(value) for value in case[2]] == [False] * len(case[2])


@pytest.mark.parametrize("text", ["NaN", "{'a': 1}", '{"a": 1', "[1,]", '"\n"', "1 2", ""])
def test_what_is_no_json_as_a_whole_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "[1] is not of type 'object', 'boolean'"),
        ('{"items": [{"type": "string"}]}', "at items: "),
        ('{"type": "int"}', "at type: 'int' is not valid"),
        ('{"properties": {"a": {"required": "a"}}}', "at properties/a/required: 'a' is not of"),
        ('{"exclusiveMinimum": true}', "at exclusiveMinimum: True is not of type 'number'"),
        ('{"multipleOf": 0}', "at multipleOf: 0 is less than"),
        ('{"pattern": "("}', "at pattern: '(' is not a 'regex'"),
        ('{"$ref": "other.json"}', "refers to 'other.json', which is not in it"),
        ('{"items": {"$ref": "#/$defs/a"}}', "refers to '#/$defs/a', which is not in it"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SkitError, match=re.escape(reason)):
        JsonSchema(text)


def test_extensions_and_descriptions_assert_nothing() -> None:
    schema = JsonSchema(
        '{"x-guidance": {"whitespace_flexible": false}, "title": "t", "type": "null"}'
    )
    assert schema.allows(None)


def test_a_schema_that_is_nothing_but_itself_is_named() -> None:
    with pytest.raises(SkitError, match="refers to itself without end"):
        JsonSchema('{"$ref": "#"}').allows(1)
