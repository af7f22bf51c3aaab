"""Files of results: written whole, sealed by a hash, and read with one line for whatever is wrong with them."""

from pathlib import Path

from msgspec import json, structs, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import decode
from specbench_kit.metrics.suite import SuiteResult
from specbench_kit.runs.folder import content_hash, slug, write_text
from specbench_kit.studies.suite.definition import RESULTS, Suite, load, suite_names

SCHEMA = 1


def sealed(result: SuiteResult) -> SuiteResult:
    """Return the result with the hash of its content."""
    return structs.replace(result, seal=_hash(result))


def save(result: SuiteResult, folder: Path) -> Path:
    """Write one file into a folder, named after the suite and the policy, and return its path."""
    path = folder / f"{result.suite}-{slug(result.policy.spec)}.json"
    write_text(path, json.encode(sealed(result)).decode() + "\n")
    return path


def read(path: Path) -> SuiteResult:
    """Return the result in a file; raise SkitError if it is broken, was changed, or belongs to another suite."""
    try:
        result = decode(SuiteResult, path.read_bytes())
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SkitError(f"{path} is no file of skit suite run: {error}") from error
    if result.schema != SCHEMA:
        raise SkitError(f"{path} has form {result.schema}, and this kit reads form {SCHEMA}: update specbench-kit")
    if result.seal != _hash(result):
        raise SkitError(f"{path} was changed after it was written: its seal does not hold; submit the file as it was")
    if result.suite not in suite_names():
        raise SkitError(f"{path} belongs to suite {result.suite}, and this kit has {', '.join(suite_names())}")
    suite = load(result.suite)
    if result.suite_sha256 != suite.sha256:
        raise SkitError(
            f"{path} was made with another suite of the name {result.suite}: its hash is "
            f"{result.suite_sha256[:12]}, and this kit's is {suite.sha256[:12]}"
        )
    return result


def kit_results(suite: Suite) -> list[SuiteResult]:
    """Return the results of the kit's own policies, which ship with the suite: a file for each."""
    return [read(path) for path in sorted((suite.folder / RESULTS).glob("*.json"))]


def submissions(folder: Path) -> list[SuiteResult]:
    """Return the results in the files of a folder; a quick run has no place among them."""
    if not folder.is_dir():
        raise SkitError(f"there is no folder '{folder}'")
    found = []
    for path in sorted(folder.glob("*.json")):
        result = read(path)
        if result.quick:
            raise SkitError(f"{path} is of a quick run, which compares with nothing: run the suite without --quick")
        found.append(result)
    return found


def _hash(result: SuiteResult) -> str:
    return content_hash(to_builtins(structs.replace(result, seal="")))
