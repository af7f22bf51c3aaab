"""Files of results: written whole, sealed by a hash, and read with one line for whatever is wrong
with them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import json, structs, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import decode
from specbench_kit.runs.folder import content_hash, slug, write_text
from specbench_kit.studies.suite.scores import MeasuredResult, SuiteResult

if TYPE_CHECKING:
    from specbench_kit.studies.suite.definition import Suite

SCHEMA = 1


MEASURED = ".measured.json"
"""The end of the name of a file with what was measured at running servers."""
Sealed = TypeVar("Sealed", SuiteResult, MeasuredResult)


def sealed(result: Sealed) -> Sealed:
    """Return the result with the hash of its content."""
    return structs.replace(result, seal=_hash(result))


def save(result: SuiteResult, folder: Path) -> Path:
    """Write one file into a folder, named after the suite and the policy, and return its path."""
    path = folder / f"{result.suite}-{slug(result.policy.spec)}.json"
    write_text(path, json.encode(sealed(result)).decode() + "\n")
    return path


def save_measured(result: MeasuredResult, folder: Path) -> Path:
    """Write what was measured at servers into a folder, named after the suite and both servers."""
    names = "-".join(slug(server.name) for server in result.servers)
    path = folder / f"{result.suite}-{names}{MEASURED}"
    write_text(path, json.encode(sealed(result)).decode() + "\n")
    return path


def read(path: Path) -> SuiteResult:
    """Return the result in a file; raise SkitError if it is broken, was changed, or belongs to
    another suite.
    """
    if path.name.endswith(MEASURED):
        raise SkitError(
            f"{path} was measured at running servers: only measuring them again checks it"
        )
    return _read(SuiteResult, path)


def _read(kind: type[Sealed], path: Path) -> Sealed:
    try:
        result = decode(kind, path.read_bytes())
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SkitError(f"{path} is no file of skit suite run: {error}") from error
    if result.schema != SCHEMA:
        raise SkitError(
            f"{path} has form {result.schema}, and this kit reads form {SCHEMA}: update specbench-kit"
        )
    if result.seal != _hash(result):
        raise SkitError(
            f"{path} was changed after it was written: its seal does not hold; submit the file as it was"
        )
    # What a suite decodes takes seconds to load, and most wrong files need none of it.
    from specbench_kit.studies.suite.definition import load, suite_names

    if result.suite not in suite_names():
        raise SkitError(
            f"{path} belongs to suite {result.suite}, and this kit has {', '.join(suite_names())}"
        )
    suite = load(result.suite)
    if result.suite_sha256 != suite.sha256:
        raise SkitError(
            f"{path} was made with another suite of the name {result.suite}: its hash is "
            f"{result.suite_sha256[:12]}, and this kit's is {suite.sha256[:12]}"
        )
    return result


def kit_results(suite: "Suite") -> list[SuiteResult]:
    """Return the results of the kit's own policies, which ship with the suite: a file for each."""
    from specbench_kit.studies.suite.definition import RESULTS

    return [read(path) for path in sorted((suite.folder / RESULTS).glob("*.json"))]


def submissions(folder: Path) -> list[SuiteResult]:
    """Return the results in the files of a folder; a quick run has no place among them."""
    if not folder.is_dir():
        raise SkitError(f"there is no folder '{folder}'")
    paths = [path for path in sorted(folder.glob("*.json")) if not path.name.endswith(MEASURED)]
    return [_not_quick(path, read(path)) for path in paths]


def measurements(folder: Path) -> list[MeasuredResult]:
    """Return what was measured at running servers, from the files of a folder."""
    return [
        _not_quick(path, _read(MeasuredResult, path))
        for path in sorted(folder.glob(f"*{MEASURED}"))
    ]


def _not_quick(path: Path, result: Sealed) -> Sealed:
    if result.quick:
        raise SkitError(
            f"{path} is of a quick run, which compares with nothing: run the suite without --quick"
        )
    return result


def _hash(result: SuiteResult | MeasuredResult) -> str:
    return content_hash(to_builtins(structs.replace(result, seal="")))
