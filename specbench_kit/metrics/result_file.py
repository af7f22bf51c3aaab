"""The file of a benchmark's result, from which all of its pages can be made again."""

import json
import lzma
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_readable, unpack_xz
from specbench_kit.core.plain_text import one_line_texts
from specbench_kit.core.typed_json import convert, parse
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_data import holds_runs

VERSION = 1
"""The version of the format. It rises when an older kit would misread a file."""
NAME = "result.json"
COMPRESSED = "result.json.xz"


class ResultDocument(Struct):
    """The content of `result.json`."""

    kind: Annotated[Literal["bench"], Meta(description="command whose result it is")]
    version: Annotated[int, Meta(description="version of the format")]
    result: Annotated[Comparison, Meta(description="the comparison of the benchmark's runs")]


def document_of(comparison: Comparison) -> ResultDocument:
    """Return the content of the file of a comparison.

    It names no folder: where they lie is a matter of one machine, and the file is passed on.
    """
    return ResultDocument("bench", VERSION, structs.replace(comparison, folders=[]))


def to_json(comparison: Comparison) -> str:
    """Return the content of the file; a number that is not finite raises ValueError."""
    content = to_builtins(document_of(comparison))
    content["result"].pop("folders")
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def find(folder: Path) -> Path | None:
    """Return the file of a result, compressed or not, in a folder that holds no runs; None if there
    is none.
    """
    if holds_runs(folder):
        return None
    return next((folder / name for name in (NAME, COMPRESSED) if (folder / name).is_file()), None)


def read(path: Path) -> Comparison:
    """Return the result in a file; SkitError if it is none, or of a newer version."""
    try:
        content = path.read_bytes()
        document = one_line_texts(parse(unpack_xz(content) if path.suffix == ".xz" else content))
        version = document.get("version") if isinstance(document, dict) else None
        require_readable(path, version, VERSION)
        return _whole(convert(ResultDocument, document).result)
    except (OSError, lzma.LZMAError) as error:
        raise SkitError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise SkitError(f"{path}: {error}: it is not a result of skit bench") from error


def _whole(comparison: Comparison) -> Comparison:
    """Return a result all of whose parts belong together; raise ValueError for any other."""
    labels = {series.label for series in comparison.series}
    for holds, problem in (
        (bool(comparison.parts) and bool(labels), "it has no table or no series"),
        (
            bool(comparison.runs) and all(series.runs for series in comparison.series),
            "a series has no run",
        ),
        (
            all(part.rows.keys() <= labels for part in comparison.parts),
            "a table has a row without a series",
        ),
        (
            bool(comparison.parts) and comparison.overall.keys() == labels,
            "the first table lacks a series",
        ),
        (labels <= comparison.curves.keys(), "a series has no curves"),
        (comparison.reference in labels, f"its reference '{comparison.reference}' is no series"),
    ):
        if not holds:
            raise ValueError(problem)
    return comparison
