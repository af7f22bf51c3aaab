"""Rows of the files that prompts are kept in."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line

PARQUET = ".parquet"
PlacedRow = tuple[str, dict[str, Any]]
"""Where a row stands, for error messages, and its fields."""


def read_rows(path: Path) -> Iterator[PlacedRow]:
    """The rows of a Parquet file, or of another as `parse_rows` takes them."""
    if path.suffix == PARQUET:
        yield from _parquet_rows(path)
        return
    try:
        with path.open("rb") as lines:
            yield from parse_rows(path.name, lines)
    except OSError as error:
        raise SkitError(f"cannot read prompts from '{path}': {error.strerror}; give a JSONL file") from error


def parse_rows(name: str, lines: Iterable[bytes]) -> Iterator[PlacedRow]:
    """The rows of a JSONL file, blank lines left out, or the lines of a `.txt` file as rows with one field `text`."""
    for number, line in enumerate(lines, 1):
        place = f"{name}, line {number}"
        text = _decode(line, place)
        if name.endswith(".txt"):
            yield place, {"text": text}
        elif text.strip():
            yield place, _row(text, place)


def _parquet_rows(path: Path) -> Iterator[PlacedRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches()
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from ((f"{path.name}, row {number}", row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise SkitError(f"cannot read prompts from '{path}': {first_line(error)}; give a whole Parquet file") from error


def _decode(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SkitError(f"{place}: not UTF-8 text: save the file as UTF-8") from error


def _row(text: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise SkitError(f"{place}: not valid JSON ({error}): write one JSON object per line") from error
    if not isinstance(row, dict):
        raise SkitError(f"{place}: a {type(row).__name__} where a JSON object belongs")
    return row
