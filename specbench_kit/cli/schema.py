"""`skit schema`: the JSON Schemas of the kit's file formats."""

import json
from typing import Annotated

from specbench_kit.core.option import Option


def schema(
    name: Annotated[
        str | None,
        Option(
            "run, request, rounds, summary, profile, deployment, predictor, trace or dataset; without a name, list "
            "them.",
            argument=True,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a format, or list the formats."""
    from specbench_kit.studies.interchange.schemas import FILE_FORMATS, json_schema

    if name is None:
        width = max(map(len, FILE_FORMATS))
        for format_name, file_format in FILE_FORMATS.items():
            print(f"{format_name:{width}}  {file_format.summary}")
    else:
        print(json.dumps(json_schema(name), indent=2))
