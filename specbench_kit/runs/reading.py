"""What a run directory holds, read back; a damaged file or line is named."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.detail import RequestDetail
from specbench_kit.decoding.json_fields import parse
from specbench_kit.decoding.records import RequestRecord


def read_object(path: Path) -> dict[str, Any]:
    with reported(f"cannot read {path}", "name a run directory that skit bench made"):
        content = path.read_bytes()
    try:
        found = parse(content)
    except ValueError as error:
        raise SkitError(f"{path} is not valid JSON ({error}): the run cannot be read") from error
    if not isinstance(found, dict):
        raise SkitError(f"{path} holds no JSON object: it was not written by skit bench")
    return found


def read_records(path: Path) -> list[RequestRecord]:
    """The records of the file's whole lines, each once; a file that is not there has none."""
    records: dict[tuple[str, int], RequestRecord] = {}
    for number, line in enumerate(whole_lines(path), 1):
        record = _read_record(line, f"{path}:{number}")
        if records.setdefault(record.key, record) != record:
            again = f", repeat {record.repeat}," if record.repeat else ""
            raise SkitError(
                f"{path}:{number}: request '{record.request_id}'{again} is recorded twice, and not alike: "
                "remove one of the lines"
            )
    return list(records.values())


def whole_lines(path: Path) -> list[bytes]:
    with reported(f"cannot read {path}", "fix its permissions"):
        content = path.read_bytes() if path.exists() else b""
    return content.split(b"\n")[:-1]


def read_details(path: Path) -> list[RequestDetail]:
    details = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            details.append(RequestDetail.from_json(line))
        except ValueError as error:
            raise SkitError(f"{path}:{number}: not a request's rounds ({error}): remove the line") from error
    return details


def _read_record(line: bytes, place: str) -> RequestRecord:
    try:
        return RequestRecord.from_json(line)
    except ValueError as error:
        raise SkitError(f"{place}: not a request record ({error}): remove the line and use --resume") from error


@contextmanager
def reported(problem: str, hint: str) -> Iterator[None]:
    """Turn an OSError into one line that names the problem, its cause and what to do."""
    try:
        yield
    except OSError as error:
        raise SkitError(f"{problem}: {error.strerror or error}; {hint}") from error
