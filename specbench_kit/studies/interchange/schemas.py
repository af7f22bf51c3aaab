"""JSON Schemas of the kit's own file formats, made from the types that read the files."""

from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any, NamedTuple

import msgspec

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.descriptions import metric_descriptions
from specbench_kit.metrics.vocabulary import MetricValues
from specbench_kit.reports.study import StudyKind
from specbench_kit.studies.kinds import kinds

JsonSchema = JsonObject
"""A schema, or a part of one, in the form of the standard that DIALECT names."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class FileFormat(NamedTuple):
    """A file format: the files that have it, and where the type of their content is defined."""

    summary: str
    type_name: str


FILE_FORMATS = {
    "run": FileFormat("run.json of a run directory: what was run", "runs.document:RunDocument"),
    "request": FileFormat(
        "a line of requests.jsonl or baseline.jsonl", "decoding.records:RequestRecord"
    ),
    "rounds": FileFormat(
        "a line of rounds_detail.jsonl: a request's token trees", "decoding.detail:RequestDetail"
    ),
    "summary": FileFormat(
        "summary.json of a benchmark run: its metrics", "metrics.run_summary:RunSummary"
    ),
    "result": FileFormat(
        "result.json of a benchmark: all that its pages are made from",
        "metrics.result_file:ResultDocument",
    ),
    "profile": FileFormat("a latency profile, TOML", "profilers.base:Profile"),
    "deployment": FileFormat("the field deployment of run.json", "deployments.base:Deployment"),
    "predictor": FileFormat(
        "predictor.json of a predictor's folder", "predictors.library:PredictorHeader"
    ),
    "trace": FileFormat(
        "the header in the metadata of a trace, Parquet", "traces.trace:TraceHeader"
    ),
    "dataset": FileFormat("a dataset definition, TOML", "datasets.toml_datasets:DatasetDefinition"),
}
"""The formats by name; types are imported when they are needed."""


def formats() -> dict[str, str]:
    """Return what each format is by its name: single files, and the two files of every other
    command's folder.
    """
    folders = {
        command: f"the folder of skit {command}: run.json says what was run, {kind.summary} what was found"
        for command, kind in kinds().items()
    }
    return {name: entry.summary for name, entry in FILE_FORMATS.items()} | folders


def json_schema(name: str) -> JsonSchema:
    """Return the JSON Schema of a format; SkitError if there is no format of that name."""
    if name not in (known := formats()):
        raise SkitError(
            f"unknown format '{name}'{did_you_mean(name, known)}; known: {', '.join(known)}"
        )
    if name in FILE_FORMATS:
        described = resolve_name(f"specbench_kit.{FILE_FORMATS[name].type_name}")
    else:
        described = _both_files(kinds()[name])
    schema = msgspec.json.schema(described, schema_hook=_schema_of_other_types)
    _describe_metrics(schema["$defs"])
    if name not in FILE_FORMATS:
        run, result = schema["$defs"][described.__name__]["properties"].values()
        run["description"], result["description"] = "what was run", "what was found"
    return {"$schema": DIALECT, **schema}


def _both_files(kind: StudyKind[Any, Any]) -> type[msgspec.Struct]:
    """Return a type whose fields are the two files of a study's folder."""
    run = ("run", kind.description, msgspec.field(name="run.json"))
    result = ("result", kind.result, msgspec.field(name=kind.summary))
    return msgspec.defstruct(f"FolderOf{type(kind).__name__.removesuffix('Kind')}", [run, result])


def _describe_metrics(definitions: JsonSchema) -> None:
    """Describe the metrics by their definitions, which are no `Meta` of their fields."""
    holders: list[type[MetricValues]] = [MetricValues, *MetricValues.__subclasses__()]
    for kind in holders:
        if definition := definitions.get(kind.__name__):
            for name, description in metric_descriptions().items():
                definition["properties"][name]["description"] = description


def _schema_of_other_types(kind: type) -> dict[str, str]:
    """Return a schema that allows any value, for types that msgspec does not describe, such as
    latency models.
    """
    return {"title": "any" if kind is object else kind.__name__}


class FieldRow(NamedTuple):
    """A field of a format for a table: its name, its type in words, and its description."""

    name: str
    kind: str
    description: str


class ObjectTable(NamedTuple):
    """The fields of one kind of object in a format."""

    title: str
    description: str
    rows: list[FieldRow]


def object_tables(schema: JsonSchema) -> Iterator[ObjectTable]:
    """Yield a table for each kind of object that a schema defines, the outermost first."""
    definitions = schema["$defs"]
    outermost = schema["$ref"].rpartition("/")[2]
    for title in dict.fromkeys([outermost, *definitions]):
        definition = definitions[title]
        required = definition.get("required", ())
        rows = [
            FieldRow(
                name if name in required else f"{name}?",
                _kind(content),
                content.get("description", ""),
            )
            for name, content in definition.get("properties", {}).items()
        ]
        yield ObjectTable(title, definition.get("description", ""), rows)


def _kind(content: JsonSchema) -> str:
    """Return the type of a field in words, such as `list of integer or null`."""
    if "$ref" in content:
        return str(content["$ref"]).rpartition("/")[2]
    if "anyOf" in content:
        return " or ".join(map(_kind, content["anyOf"]))
    if "enum" in content:
        return "one of " + ", ".join(str(value) for value in content["enum"])
    if content.get("type") == "array" and isinstance(content.get("items"), dict):
        return f"list of {_kind(content['items'])}"
    if isinstance(content.get("additionalProperties"), dict):
        return f"object of {_kind(content['additionalProperties'])}"
    return str(content.get("type", "any"))
