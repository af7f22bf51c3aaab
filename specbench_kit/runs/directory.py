"""A run's folder: what was run, one line per finished request, and the summary and reports made
from them.

It has one writer at a time, by a lock that ends with the writer's process. Errors name the damaged
file and line.
"""

import json
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import replace_file, require_readable, unpack_xz
from specbench_kit.core.option import OptionValues
from specbench_kit.core.plain_text import one_line_texts
from specbench_kit.core.typed_json import JsonObject, parse
from specbench_kit.decoding.detail import RequestDetail
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs.document import RunDocument, RunFields
from specbench_kit.runs.folder import (
    KEY_DIGITS,
    Defining,
    content_hash,
    encode,
    folder_candidates,
    newest_of_command,
    nothing_to_resume,
    slug,
    to_json,
)
from specbench_kit.runs.line_file import RESUME_HINT, LineFile, reported

SCHEMA_VERSION = 1
"""The version of the format. It rises when an older kit would misread a run; new fields, which
readers skip, do not raise it.
"""

_DEFINING = (
    "method",
    "method_source",
    "options",
    "uses",
    "dataset",
    "models",
    "config",
    "time_kind",
    "deployment",
    "server",
    "shaped_link",
)
_SLUG_LENGTH = 60


def config_key(run: RunFields) -> str:
    """Return the SHA-256 of what defines a run: two runs with the same key ask for the same work.

    Where the resolved options are known they count and the spec does not: `fixed-k` and
    `fixed-k:k=4` are the same.
    """
    return content_hash(_defining(run))


def _defining(run: RunFields) -> Defining:
    fields: Defining = run
    defining = {name: fields[name] for name in _DEFINING if name in fields}
    if "options" in run:
        defining["method"] = run["method"].partition(":")[0]
    return defining


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run on disk; `run` is the content of its `run.json`.

    Reading changes no file and skips a last line that a kill cut short; the next append removes it.
    """

    path: Path
    run: RunFields

    def remove(self) -> None:
        """Delete the folder of a run that did not begin."""
        shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def create(cls, out: Path, run: RunFields) -> "RunDirectory":
        """Make `<out>/<utc-time>-<method>-<dataset>-<hash>/` with its `run.json`."""
        run = {"schema_version": SCHEMA_VERSION, **run}
        content = to_json(run)
        with reported(
            f"cannot make a run directory in {out}",
            "make room there or choose another folder with --out",
        ):
            out.mkdir(parents=True, exist_ok=True)
            path = _make_folder(out, run)
            try:
                replace_file(path / "run.json", encode(content))
                (path / "requests.jsonl").touch()
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
                raise
        return cls(path, run)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Return the run in the folder `path`, to read it or to resume it."""
        if not (path / "run.json").exists() and (path / "report.md").exists():
            raise SkitError(
                f"{path} is a report: name one of the runs that it lists at its end, which lie beside it"
            )
        run = read_run(path / "run.json")
        version = run.get("schema_version")
        if not isinstance(version, int):
            raise SkitError(
                f"{path / 'run.json'} names no schema_version: it was not written by skit bench"
            )
        require_readable(path, version, SCHEMA_VERSION)
        directory = cls(path, run)
        _ = (
            directory.document
        )  # a damaged description is refused before anything is done with the run
        return directory

    @classmethod
    def find(cls, path: Path) -> "RunDirectory":
        """Return the run in `path`, or the only run in a folder right below it."""
        folders = sorted(file.parent for file in path.glob("*/requests.jsonl"))
        if (path / "run.json").exists() or not folders:
            return cls.open(path)
        if len(folders) > 1:
            raise SkitError(
                f"{path} holds {len(folders)} runs: name one of them, such as {folders[0]}"
            )
        return cls.open(folders[0])

    @property
    def document(self) -> RunDocument:
        """The content of `run.json` by its types; SkitError names a field of a wrong type."""
        try:
            return RunDocument.read(self.run)
        except ValueError as error:
            raise SkitError(
                f"{self.path / 'run.json'}: {error}: it is not a run of skit bench"
            ) from error

    @property
    def is_partial(self) -> bool:
        """Return True unless `summary.json` says that all requests have finished."""
        return not is_whole(self.path)

    @property
    def has_begun(self) -> bool:
        """Return True if any request of the method is stored."""
        return self._holds("requests.jsonl")

    @property
    def is_empty(self) -> bool:
        """Return True if no request is stored, neither of the method nor of its baseline."""
        return not (self.has_begun or self._holds("baseline.jsonl"))

    def _holds(self, name: str) -> bool:
        file = self.path / name
        return file.is_file() and file.stat().st_size > 0

    def summary(self) -> JsonObject:
        """Return the content of `summary.json`; an empty object if it was not written yet."""
        return _summary(self.path)

    def amend(self, **facts: object) -> None:
        """Add facts to `run.json` that were not known when the run was created; types become what
        JSON holds.
        """
        self.run.update(json.loads(to_json(facts)))
        self.write_json("run.json", self.run)

    def append(self, record: RequestRecord) -> None:
        """Add a finished request of the method."""
        LineFile(self.path / "requests.jsonl").append(record.to_json())

    def append_baseline(self, record: RequestRecord) -> None:
        """Add a finished request of the autoregressive baseline."""
        LineFile(self.path / "baseline.jsonl").append(record.to_json())

    def copy_baseline(self, other: "RunDirectory") -> None:
        """Take over the baseline of another run on the same prompts, under the same conditions."""
        with self._writing("baseline.jsonl"):
            shutil.copyfile(other.path / "baseline.jsonl", self.path / "baseline.jsonl")

    def append_detail(self, detail: RequestDetail) -> None:
        """Add the token trees of a finished request."""
        LineFile(self.path / "rounds_detail.jsonl").append(detail.to_json())

    def records(self) -> list[RequestRecord]:
        """Return the method's finished requests, in the order in which they finished."""
        return read_records(self.path / "requests.jsonl")

    def baseline_records(self) -> list[RequestRecord]:
        """Return the baseline's finished requests; an empty list if no baseline was decoded."""
        return read_records(self.path / "baseline.jsonl")

    def details(self) -> list[RequestDetail]:
        """Return the token trees of the requests that were recorded with them."""
        return read_details(self.path / "rounds_detail.jsonl")

    def folder(self, name: str) -> Path:
        """Return the subfolder `name`, which is made if it is missing."""
        with self._writing(name):
            (self.path / name).mkdir(exist_ok=True)
        return self.path / name

    def write_summary(self, summary: object) -> None:
        """Write `summary.json`; a number that is not finite raises ValueError."""
        self.write_json("summary.json", summary)

    def write_json(self, name: str, content: object) -> None:
        """Write the file `name` whole or not at all; a number that is not finite raises
        ValueError.
        """
        self.write_report(name, to_json(content))

    def write_report(self, name: str, text: str) -> None:
        """Write the file `name` whole or not at all."""
        with self._writing(name):
            replace_file(self.path / name, encode(text))

    def drop_repeated(self) -> int:
        """Remove lines that repeat an earlier line, as two writers at once left them; return how
        many there were.
        """
        dropped = 0
        for name in ("requests.jsonl", "baseline.jsonl", "rounds_detail.jsonl"):
            file = LineFile(self.path / name)
            lines = file.lines()
            unique_lines = dict.fromkeys(lines)
            if len(unique_lines) < len(lines):
                file.replace(unique_lines)
            dropped += len(lines) - len(unique_lines)
        return dropped

    def _writing(self, name: str) -> AbstractContextManager[None]:
        return reported(f"cannot write {name} in {self.path}", RESUME_HINT)


def _summary(folder: Path) -> JsonObject:
    path = folder / "summary.json"
    return read_object(path) if path.exists() else {}


def is_whole(folder: Path) -> bool:
    """Return whether the summary in a run's folder says that all requests have finished."""
    return _summary(folder).get("partial") is False


def find_resumable(out: Path, described: Sequence[RunFields]) -> list[RunDirectory]:
    """Return for each described run the newest partial one below `out`, or the newest run if none
    is partial.

    Raises SkitError unless each has a run and at least one run is partial. Of methods that were run
    together some may have finished before the others were interrupted.
    """
    runs: list[RunDirectory] = []
    for run in described:
        key = config_key(run)
        # Names begin with the time of day, so that the last name is the newest run.
        folders = sorted(
            (file.parent for file in out.glob(f"*-{key[:KEY_DIGITS]}*/run.json")), reverse=True
        )
        matching = [
            found for found in map(RunDirectory.open, folders) if config_key(found.run) == key
        ]
        runs += ([found for found in matching if found.is_partial] or matching)[:1]
    if len(runs) < len(described) or not any(run.is_partial for run in runs):
        # The first one that is missing is told of: what differs is mostly the same for all of them.
        finished = runs[0].path if len(runs) == len(described) else None
        raise nothing_to_resume(out, _defining(described[0]), _unfinished(out), finished)
    return runs


def require_resumable(
    out: Path, config: OptionValues, names: Collection[str], argv: Sequence[str]
) -> None:
    """Raise SkitError if no unfinished run below `out` has these options, before models and data
    are loaded.

    `names` are those of all options that `run.json` may hold, and `config` holds those that it would hold. What only
    models and data tell is compared by `find_resumable`.
    """
    wanted = {"config": parse(json.dumps(config))}
    unfinished = {}
    for folder, defining in _unfinished(out).items():
        recorded = defining.get("config")
        known = recorded if isinstance(recorded, Mapping) else {}
        unfinished[folder] = {"config": {name: known[name] for name in names if name in known}}
    if wanted not in unfinished.values():
        finished = sorted((file.parent for file in out.glob("*/requests.jsonl")), reverse=True)
        raise nothing_to_resume(
            out, wanted, unfinished, newest_of_command(filter(is_whole, finished), argv)
        )


def _unfinished(out: Path) -> dict[Path, Defining]:
    """Return what defines each unfinished run below `out` that can be read."""
    found = {}
    for file in out.glob("*/run.json"):
        with suppress(SkitError):
            directory = RunDirectory.open(file.parent)
            if "method" in directory.run and directory.is_partial:
                found[file.parent] = _defining(directory.run)
    return found


def _make_folder(out: Path, run: RunFields) -> Path:
    # Folders of paths in a spec are left out: they say where files lie on this machine, and make
    # the name long.
    dataset = run["dataset"] or {}
    names = (run["method"], str(dataset["name"]))
    specs = (re.sub(r"[^:=,]*[/\\]", "", spec) for spec in names)
    parts = [slug(spec)[:_SLUG_LENGTH] for spec in specs]
    for path in folder_candidates(out, *parts, config_key(run)[:KEY_DIGITS]):
        try:
            path.mkdir()
        except FileExistsError:  # another run took the name within the same second
            continue
        break
    return path


def read_object(path: Path) -> JsonObject:
    """Return the JSON object that a file holds, compressed or not."""
    with reported(f"cannot read {path}", "name the folder of a run"):
        content = path.read_bytes()
    try:
        document: object = parse(unpack_xz(content) if path.suffix == ".xz" else content)
    except LZMAError as error:
        raise SkitError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise SkitError(f"{path} is not valid JSON ({error}): the run cannot be read") from error
    if not isinstance(document, dict):
        raise SkitError(f"{path} holds no JSON object: it was not written by skit")
    return document


def read_run(path: Path) -> RunFields:
    """Return the fields of a `run.json`, with texts of one line, whatever version wrote them."""
    run: RunFields = one_line_texts(read_object(path))
    return run


def read_records(path: Path) -> list[RequestRecord]:
    """Return the records of all complete lines; a line that repeats an earlier one counts once.

    A missing file has no records. Two different records of one request raise SkitError.
    """
    records: dict[tuple[str, int], RequestRecord] = {}
    advice = "remove the line and use --resume"
    for number, record in LineFile(path).records(
        RequestRecord.from_json, "a request record", advice
    ):
        if records.setdefault(record.key, record) != record:
            repeat = f", repeat {record.repeat}," if record.repeat else ""
            raise SkitError(
                f"{path}:{number}: request '{record.request_id}'{repeat} is recorded twice with different content: "
                "remove one of the lines"
            )
    return list(records.values())


def read_details(path: Path) -> list[RequestDetail]:
    """Return the token trees of all complete lines; a missing file has none."""
    lines = LineFile(path).records(RequestDetail.from_json, "a request's rounds", "remove the line")
    return [detail for _, detail in lines]
