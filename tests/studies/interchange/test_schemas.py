"""`skit schema` describes the files that the kit reads and writes, from the types that read them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import error_line, read_object, skit_here
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.vocabulary import METRICS
from specbench_kit.studies.interchange.schemas import formats, json_schema, object_tables
from specbench_kit.studies.kinds import kinds


@pytest.mark.parametrize("name", formats())
def test_every_format_has_a_schema_and_tables(name: str) -> None:
    schema = json_schema(name)
    json.dumps(schema)
    tables = list(object_tables(schema))
    assert tables[0].rows
    assert all(table.title in schema["$defs"] for table in tables)


def matches(value: Any, schema: JsonObject, definitions: JsonObject) -> bool:
    """Return True if a JSON value has the types and the required fields of a schema."""
    if "$ref" in schema:
        return matches(value, definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return any(matches(value, option, definitions) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {
        "integer": int,
        "number": (int, float),
        "string": str,
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    if "type" not in schema:
        return True
    if schema["type"] == "null" or value is None:
        return value is None and schema["type"] == "null"
    if not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, list):
        return all(matches(item, schema.get("items", {}), definitions) for item in value)
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        free = schema.get("additionalProperties")
        return set(schema.get("required", ())) <= set(value) and all(
            matches(content, fields.get(field, free if isinstance(free, dict) else {}), definitions)
            for field, content in value.items()
        )
    return True


def test_the_files_of_a_run_match_their_schemas(tmp_path: Path) -> None:
    records = in_turn(records_of(4, 0.7, 8, 24))
    run = write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    first_request = json.loads((run / "requests.jsonl").read_text().splitlines()[0])
    documents = {
        "run": read_object(run / "run.json"),
        "summary": read_object(run / "summary.json"),
        "request": first_request,
    }
    for name, document in documents.items():
        schema = json_schema(name)
        assert matches(document, schema, schema["$defs"]), name
        assert not matches({}, schema, schema["$defs"]), name
    schema = json_schema("summary")
    assert not matches(documents["summary"] | {"overall": {"tokens": "8"}}, schema, schema["$defs"])


def test_a_summary_describes_every_metric() -> None:
    fields = json_schema("summary")["$defs"]["MetricValues"]["properties"]
    assert {metric.name for metric in METRICS} <= set(fields)
    assert all(
        fields[metric.name]["description"].startswith(metric.definition) for metric in METRICS
    )


def test_a_table_describes_every_metric_by_its_definition_too() -> None:
    definitions = json_schema("result")["$defs"]
    values, row = (definitions[name]["properties"] for name in ("MetricValues", "MethodRow"))
    assert all(row[name]["description"] == values[name]["description"] for name in values)


def fields_of(schema: JsonObject) -> Iterator[tuple[str, JsonObject, JsonObject]]:
    """Yield every field of every definition in a schema: its name, its content, and the
    definition.
    """
    for title, definition in schema["$defs"].items():
        for field, content in definition.get("properties", {}).items():
            yield f"{title}.{field}", content, definition


def is_described(content: JsonObject, definitions: JsonObject) -> bool:
    """Return True if a field has a description, or holds an object whose type has one."""
    kind = definitions.get(content.get("$ref", "").rpartition("/")[2], {})
    return bool(content.get("description") or kind.get("description"))


BENCH_FILES = ("run", "summary", "result", "request", "rounds")
RESULTS = [*BENCH_FILES, *kinds()]


@pytest.mark.parametrize("name", RESULTS)
def test_every_field_of_a_result_is_described(name: str) -> None:
    schema = json_schema(name)
    assert not [
        field
        for field, content, _ in fields_of(schema)
        if not is_described(content, schema["$defs"])
    ]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_what_null_means(name: str) -> None:
    """The description of a field that may be null says so, or that of all fields does."""
    assert not [
        field
        for field, content, definition in fields_of(json_schema(name))
        if {"type": "null"} in content.get("anyOf", ())
        and "null" not in content.get("description", "") + definition.get("description", "")
    ]


def test_the_command_lists_formats_and_prints_one() -> None:
    listed = skit_here("schema")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(formats())
    printed = skit_here("schema", "run")
    assert json.loads(printed.stdout) == json_schema("run")
    assert error_line(skit_here("schema", "runs")).startswith(
        "unknown format 'runs' (did you mean 'run'?); known: run"
    )
