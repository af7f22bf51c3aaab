"""Reading rows from the files that hold prompts, and the turns of the user in them."""

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO, cast

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import require_no_pointer
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.typed_json import whole_number
from specbench_kit.datasets.base import Row

PARQUET = ".parquet"
ARROW = (".arrow", ".feather")
ARROW_MAGIC = b"ARROW1"
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
LINES = (".jsonl", ".json")
PROMPT_ENDINGS = (
    *LINES,
    PARQUET,
    *ARROW,
    *(f"{ending}{packed}" for ending in LINES for packed in COMPRESSED),
)
TABLE_ENDINGS = (".csv", ".tsv", ".md")
OTHER_ENDINGS = (".txt", *TABLE_ENDINGS)
"""Endings of files that a user may mistake for prompt files; the lines of a text are rows of a
dataset all the same.
"""
Message = dict[str, Any]
"""A message of a dialogue in whatever form a dataset has it: `role` and `content`, or `from` and `value`."""
LocatedRow = tuple[str, Row]
"""The position of a row in its file, for error messages, and its columns."""
DECODER = json.JSONDecoder(parse_int=whole_number)
"""Python's own parser: prompts may hold lone surrogates and NaN, which a stricter one would
refuse.
"""
ARRAY_OF_OBJECTS = re.compile(r"\s*\[\s*(?:\{|\]\s*$)")
SPACE = re.compile(r"\s*")
ROW_END = re.compile(r"\s*(?:,|(?=\]))")


def prompt_files(row: str) -> str:
    """Return the kinds of files that rows such as `row` are read from, in words."""
    packed = ", ".join(COMPRESSED)
    return (
        f"a .jsonl file with one {row} per line, a .json file with a list of them, either of them packed as {packed}, "
        f"or a {PARQUET} or {ARROW[0]} file"
    )


def bare_name(path: Path) -> str:
    """Return the name of a file without its ending, and without that of its packing."""
    return Path(path.stem if path.suffix in COMPRESSED else path.name).stem


def read_rows(path: Path) -> Iterator[LocatedRow]:
    """Yield the rows of a Parquet, Arrow, JSON, JSONL or text file; raise SkitError if the file
    cannot be read.
    """
    if path.is_file():
        require_no_pointer(path)
    if path.suffix in (PARQUET, *ARROW):
        yield from _table_rows(path)
        return
    name = path.name.removesuffix(path.suffix) if path.suffix in COMPRESSED else path.name
    try:
        with _opened(path) as lines:
            yield from parse_rows(name, lines)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise SkitError(
            f"cannot read prompts from '{path}': {reason}; give a complete JSONL file"
        ) from error


def _opened(path: Path) -> BinaryIO:
    """Open a file, which is unpacked while it is read if its name says that it is packed."""
    if path.suffix == ".zst":
        import pyarrow

        # An iterator of lines needs Python's own reader around that of the library.
        return BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    return cast("BinaryIO", openers.get(path.suffix, open)(path, "rb"))


def parse_rows(name: str, lines: Iterable[bytes]) -> Iterator[LocatedRow]:
    """Yield the rows of a file: JSON objects, one per line or in one array, or the lines of a
    `.txt` file.

    Blank lines are passed over. A line of a `.txt` file is a row with the column `text`. Raise
    SkitError, with the number of the line or of the row, for what is not UTF-8 or not a JSON
    object.
    """
    texts = _decoded(name, lines)
    if name.endswith(".txt"):
        yield from ((position, {"text": text}) for position, text in texts)
        return
    texts = ((position, text) for position, text in texts if text.strip())
    beginning = list(islice(texts, 1))
    if beginning and beginning[0][1].lstrip().startswith("["):
        beginning += texts
        array = "".join(text for _, text in beginning)
        if ARRAY_OF_OBJECTS.match(array):
            yield from _array_rows(name, array)
            return
    yield from (_object(position, text) for position, text in chain(beginning, texts))


def _decoded(name: str, lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        position = f"{name}, line {number}"
        try:
            yield position, line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SkitError(f"{position}: not UTF-8 text: save the file as UTF-8") from error


def _object(position: str, text: str) -> LocatedRow:
    try:
        row = DECODER.decode(text)
    except (json.JSONDecodeError, RecursionError) as error:
        advice = "write one JSON object per line, or one array of objects"
        raise SkitError(f"{position}: not valid JSON ({error}): {advice}") from error
    if not isinstance(row, dict):
        raise SkitError(f"{position}: a {type(row).__name__} where a JSON object belongs")
    return position, row


def _array_rows(name: str, text: str) -> Iterator[LocatedRow]:
    """Yield the objects of an array one by one, since a file of conversations may be as large as
    the memory.
    """
    place = text.index("[") + 1
    number = 0
    while True:
        start = SPACE.match(text, place)
        place = start.end() if start else place
        number = number + 1
        if text.startswith("]", place) and not text[place + 1 :].strip():
            return
        position = f"{name}, row {number}"
        try:
            row, place = DECODER.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SkitError(
                f"{position}: not valid JSON ({error}): the array is damaged or incomplete"
            ) from error
        if not isinstance(row, dict):
            raise SkitError(f"{position}: a {type(row).__name__} where a JSON object belongs")
        yield position, row
        end = ROW_END.match(text, place)
        if end is None:
            raise SkitError(
                f"{position}: no comma or bracket follows: the array is damaged or incomplete"
            )
        place = end.end()


def _table_rows(path: Path) -> Iterator[LocatedRow]:
    import pyarrow

    try:
        rows = (row for batch in _batches(path) for row in batch.to_pylist())
        yield from ((f"{path.name}, row {number}", row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        kind = "Parquet" if path.suffix == PARQUET else "Arrow"
        raise SkitError(
            f"cannot read prompts from '{path}': {first_line(error)}; give a complete {kind} file"
        ) from error


def _batches(path: Path) -> Iterator[Any]:
    """Yield the batches of a table. An Arrow file has an index at its end, or is a stream as
    `datasets` keeps it.
    """
    import pyarrow.ipc
    import pyarrow.parquet

    if path.suffix == PARQUET:
        yield from pyarrow.parquet.ParquetFile(path).iter_batches()
        return
    with pyarrow.OSFile(str(path)) as file:
        is_indexed = file.read(len(ARROW_MAGIC)) == ARROW_MAGIC
        file.seek(0)
        if is_indexed:
            reader = pyarrow.ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from pyarrow.ipc.open_stream(file)


USER_ROLES = ("user", "human")
SYSTEM_ROLES = ("system", "developer")


def user_turns(value: Any) -> tuple[Any, ...]:
    """Return the turns of the user in a text, a list of texts, or a list of messages.

    A message has `role` and `content`, or `from` and `value`; its content is a text or a list of
    parts of text. The messages of others are left out, since the model answers by itself. Whoever
    calls this checks that turns are texts.
    """
    if not isinstance(value, list):
        return (value,)
    return tuple(
        text_of(message) for message in messages_of(value) if role_of(message) in USER_ROLES
    )


def system_text(value: Any) -> str:
    """Return what the system says before the first turn of the user, "" if nothing."""
    opening = takewhile(lambda message: role_of(message) in SYSTEM_ROLES, messages_of(value))
    return "\n\n".join(str(text_of(message)) for message in opening).strip()


def messages_of(value: Any) -> list[Message]:
    """Return the messages of a conversation, each of whose turns may be a text alone; none of a text."""
    if not isinstance(value, list):
        return []
    return [
        turn if isinstance(turn, dict) else {"role": USER_ROLES[0], "content": turn}
        for turn in value
    ]


def role_of(message: Message) -> str:
    """Return who says a message, in small letters."""
    return str(message.get("role", message.get("from"))).lower()


def text_of(message: Message) -> Any:
    """Return what a message says; raise ValueError for parts that are not text."""
    content = message["content"] if "content" in message else message["value"]
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise ValueError(
                "a message has a part that is not text, which a language model alone cannot read"
            )
    return "".join(part["text"] for part in content)


def schema_text(value: Any) -> str:
    """Return a JSON schema, an object or its text, as a text; "" for anything else."""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) and value.lstrip().startswith("{") else ""
