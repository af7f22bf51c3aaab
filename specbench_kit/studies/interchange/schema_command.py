"""`skit schema`: the JSON Schemas of the kit's file formats."""

import json
from typing import Annotated

from specbench_kit.core.option import Option


def schema(
    name: Annotated[
        str | None,
        Option(
            "run, request, rounds, summary, result, profile, deployment, predictor, trace, dataset, or a command that "
            "writes a folder, such as sweep; without a name, list them.",
            argument=True,
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a format, or list the formats."""
    from specbench_kit.studies.interchange.schemas import formats, json_schema

    if name is None:
        known = formats()
        width = max(map(len, known))
        for format_name, summary in known.items():
            print(f"{format_name:{width}}  {summary}")
    else:
        print(json.dumps(json_schema(name), indent=2))
