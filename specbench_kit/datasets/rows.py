"""Reading rows from the files that hold prompts."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.datasets.base import Row

PARQUET = ".parquet"
LocatedRow = tuple[str, Row]
"""The position of a row in its file, for error messages, and its columns."""


def read_rows(path: Path) -> Iterator[LocatedRow]:
    """Yield the rows of a Parquet, JSONL or text file; raise SkitError if the file cannot be read."""
    if path.suffix == PARQUET:
        yield from _parquet_rows(path)
        return
    try:
        with path.open("rb") as lines:
            yield from parse_rows(path.name, lines)
    except OSError as error:
        raise SkitError(f"cannot read prompts from '{path}': {error.strerror}; give a JSONL file") from error


def parse_rows(name: str, lines: Iterable[bytes]) -> Iterator[LocatedRow]:
    """Yield the rows of a JSONL file without its blank lines; each line of a `.txt` file is a row with column `text`.

    Raise SkitError, with the number of the line, if a line is not UTF-8 or not a JSON object.
    """
    for number, line in enumerate(lines, 1):
        position = f"{name}, line {number}"
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SkitError(f"{position}: not UTF-8 text: save the file as UTF-8") from error
        if name.endswith(".txt"):
            yield position, {"text": text}
        elif text.strip():
            # Python's own parser: prompts may hold lone surrogates and NaN, which a stricter one would refuse.
            try:
                row = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise SkitError(f"{position}: not valid JSON ({error}): write one JSON object per line") from error
            if not isinstance(row, dict):
                raise SkitError(f"{position}: a {type(row).__name__} where a JSON object belongs")
            yield position, row


def _parquet_rows(path: Path) -> Iterator[LocatedRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(path).iter_batches()
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from ((f"{path.name}, row {number}", row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise SkitError(
            f"cannot read prompts from '{path}': {first_line(error)}; give a complete Parquet file"
        ) from error
