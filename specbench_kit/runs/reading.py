"""Reading the files of a run directory; errors name the damaged file and line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject, parse
from specbench_kit.decoding.detail import RequestDetail
from specbench_kit.decoding.records import RequestRecord


def read_object(path: Path) -> JsonObject:
    """Return the JSON object that a file holds."""
    with reported(f"cannot read {path}", "name a run directory that skit bench made"):
        content = path.read_bytes()
    try:
        document: object = parse(content)
    except ValueError as error:
        raise SkitError(f"{path} is not valid JSON ({error}): the run cannot be read") from error
    if not isinstance(document, dict):
        raise SkitError(f"{path} holds no JSON object: it was not written by skit bench")
    return document


def read_records(path: Path) -> list[RequestRecord]:
    """Return the records of all complete lines; a line that repeats an earlier one counts once.

    A missing file has no records. Two different records of one request raise SkitError.
    """
    records: dict[tuple[str, int], RequestRecord] = {}
    for number, line in enumerate(complete_lines(path), 1):
        try:
            record = RequestRecord.from_json(line)
        except ValueError as error:
            raise SkitError(
                f"{path}:{number}: not a request record ({error}): remove the line and use --resume"
            ) from error
        if records.setdefault(record.key, record) != record:
            repeat = f", repeat {record.repeat}," if record.repeat else ""
            raise SkitError(
                f"{path}:{number}: request '{record.request_id}'{repeat} is recorded twice with different content: "
                "remove one of the lines"
            )
    return list(records.values())


def read_details(path: Path) -> list[RequestDetail]:
    """Return the token trees of all complete lines; a missing file has none."""
    details = []
    for number, line in enumerate(complete_lines(path), 1):
        try:
            details.append(RequestDetail.from_json(line))
        except ValueError as error:
            raise SkitError(f"{path}:{number}: not a request's rounds ({error}): remove the line") from error
    return details


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines that end in a newline: what a kill cut short at the end of the file is left out."""
    with reported(f"cannot read {path}", "fix its permissions"):
        content = path.read_bytes() if path.exists() else b""
    return content.split(b"\n")[:-1]


@contextmanager
def reported(problem: str, hint: str) -> Iterator[None]:
    """Turn an OSError into a SkitError of one line: the problem, its cause and what to do."""
    try:
        yield
    except OSError as error:
        raise SkitError(f"{problem}: {error.strerror or error}; {hint}") from error
