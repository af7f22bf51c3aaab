"""A run's folder: what was run, one line per finished request, and the summary and reports drawn from them."""

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_lined
from specbench_kit.core.renamed import with_current_names
from specbench_kit.decoding.detail import RequestDetail
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs import fields
from specbench_kit.runs.folder import replace_file
from specbench_kit.runs.reading import read_details, read_object, read_records, reported, whole_lines

SCHEMA_VERSION = 1
"""Raised when an older kit would misread a run; added fields do not raise it, since readers pass over them."""

_DEFINING = (
    "method",
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
RESUME_HINT = "finished requests are kept; make room or fix its permissions, then go on with --resume"
"""What a user has to know of a disk that is full."""
_KEY_DIGITS = 8
_SLUG_LENGTH = 60


def config_key(run: dict[str, Any]) -> str:
    """SHA-256 of what defines a run: two runs with one key ask for the same work.

    Where the resolved options are known, a spec that names one and a spec that leaves it at that value are the same.
    """
    defining = {name: run[name] for name in _DEFINING if name in run}
    if "options" in run:
        defining["method"] = run["method"].partition(":")[0]
    return hashlib.sha256(json.dumps(defining, sort_keys=True, allow_nan=False).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run on disk; `run` is the content of its `run.json`.

    Reading changes no file and passes over a last line that a kill cut short; the next append removes it.
    """

    path: Path
    run: dict[str, Any]

    def remove(self) -> None:
        """Leave nothing of a run that is not to be."""
        shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def create(cls, out: Path, run: dict[str, Any]) -> "RunDirectory":
        """Make `<out>/<utc-time>-<method>-<dataset>-<hash>/` with its `run.json`."""
        run = {"schema_version": SCHEMA_VERSION, **run}
        content = _to_json(run)
        with reported(f"cannot make a run directory in {out}", "make room there or choose another folder with --out"):
            out.mkdir(parents=True, exist_ok=True)
            path = _make_folder(out, _folder_name(run))
            try:
                replace_file(path / "run.json", _encode(content))
                (path / "requests.jsonl").touch()
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
                raise
        return cls(path, run)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """The run that lies in `path`, to read it or to go on with it."""
        run = one_lined(read_object(path / "run.json"))
        version = run.get("schema_version")
        if not isinstance(version, int):
            raise SkitError(f"{path / 'run.json'} names no schema_version: it was not written by skit bench")
        if version > SCHEMA_VERSION:
            raise SkitError(
                f"{path} was written by a newer specbench-kit (schema {version}, this one reads up to "
                f"{SCHEMA_VERSION}): upgrade specbench-kit"
            )
        fields.check(path / "run.json", run)
        return cls(path, run)

    @classmethod
    def find(cls, path: Path) -> "RunDirectory":
        """The run in `path`, or the only one right below it."""
        inside = sorted(file.parent for file in path.glob("*/requests.jsonl"))
        if (path / "run.json").exists() or not inside:
            return cls.open(path)
        if len(inside) > 1:
            raise SkitError(f"{path} holds {len(inside)} runs: name one of them, such as {inside[0]}")
        return cls.open(inside[0])

    @property
    def is_partial(self) -> bool:
        """Whether requests may be missing: true until `summary.json` says otherwise."""
        return self.summary().get("partial") is not False

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`; nothing where it was not written yet."""
        path = self.path / "summary.json"
        return with_current_names(read_object(path), str(path)) if path.exists() else {}

    def amend(self, **facts: Any) -> None:
        """Write `run.json` anew with facts that were not known when the run was made."""
        self.run.update(facts)
        self.write_json("run.json", self.run)

    def append(self, record: RequestRecord) -> None:
        """Add a finished request of the method."""
        self._append("requests.jsonl", record)

    def append_baseline(self, record: RequestRecord) -> None:
        """Add a finished request of the autoregressive baseline."""
        self._append("baseline.jsonl", record)

    def append_detail(self, detail: RequestDetail) -> None:
        """Add the trees of a finished request's rounds."""
        self._append("rounds_detail.jsonl", detail)

    def records(self) -> list[RequestRecord]:
        """The method's finished requests, in the order in which they finished."""
        return read_records(self.path / "requests.jsonl")

    def baseline_records(self) -> list[RequestRecord]:
        """The baseline's finished requests; none where no baseline was decoded."""
        return read_records(self.path / "baseline.jsonl")

    def details(self) -> list[RequestDetail]:
        """The trees of those requests that were recorded with them."""
        return read_details(self.path / "rounds_detail.jsonl")

    def folder(self, name: str) -> Path:
        """A folder in the run's own, made where it is not there."""
        with self._writing(name):
            (self.path / name).mkdir(exist_ok=True)
        return self.path / name

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`; a number that is not finite is a ValueError."""
        self.write_json("summary.json", summary)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write the file `name`, whole or not at all; a number that is not finite is a ValueError."""
        self.write_report(name, _to_json(content))

    def write_report(self, name: str, text: str) -> None:
        """Write the file `name`, whole or not at all."""
        with self._writing(name):
            replace_file(self.path / name, _encode(text))

    def drop_repeated(self) -> int:
        """Remove the lines that repeat an earlier one to the byte, as two writers at once left them; how many."""
        return sum(map(self._drop_repeated, ("requests.jsonl", "baseline.jsonl", "rounds_detail.jsonl")))

    def _drop_repeated(self, name: str) -> int:
        lines = whole_lines(self.path / name)
        kept = dict.fromkeys(lines)
        if len(kept) < len(lines):
            with self._writing(name):
                replace_file(self.path / name, b"".join(line + b"\n" for line in kept))
        return len(lines) - len(kept)

    def _append(self, name: str, record: RequestRecord | RequestDetail) -> None:
        line = _encode(record.to_json() + "\n")
        with self._writing(name), (self.path / name).open("ab+") as file:
            _cut_partial_line(file)
            file.write(line)

    def _writing(self, name: str) -> AbstractContextManager[None]:
        return reported(f"cannot write {name} in {self.path}", RESUME_HINT)


def find_resumable(out: Path, keys: Sequence[str]) -> list[RunDirectory]:
    """For each `config_key` the newest partial run below `out`, else the newest; an error unless one is partial.

    Of methods that were run together some may have finished before the others were interrupted.
    """
    found = [run for run in (_newest(out, key) for key in keys) if run is not None]
    if len(found) < len(keys) or not any(run.is_partial for run in found):
        raise SkitError(f"{out} holds no unfinished run with these settings: start one without --resume")
    return found


def _newest(out: Path, key: str) -> RunDirectory | None:
    folders = sorted((file.parent for file in out.glob(f"*-{key[:_KEY_DIGITS]}*/run.json")), reverse=True)
    runs = [run for run in map(RunDirectory.open, folders) if config_key(run.run) == key]
    return next((run for run in runs if run.is_partial), next(iter(runs), None))


def _folder_name(run: dict[str, Any]) -> str:
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return "-".join((time, _slug(run["method"]), _slug(run["dataset"]["name"]), config_key(run)[:_KEY_DIGITS]))


def _slug(spec: str) -> str:
    """The spec as part of a file name, with folders left out of the paths in it."""
    without_folders = re.sub(r"[^:=,]*[/\\]", "", spec)
    return re.sub(r"[^a-z0-9.]+", "-", without_folders.lower()).strip("-.")[:_SLUG_LENGTH]


def _make_folder(out: Path, name: str) -> Path:
    """A new folder `name`, numbered where another run of this second took the name."""
    for number in itertools.count(1):
        path = out / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        break
    return path


def _to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _encode(text: str) -> bytes:
    # A prompt file may hold half of a surrogate pair; the replacement is its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def _cut_partial_line(file: BinaryIO) -> None:
    """Drop what a kill in mid-write left after the last newline; the file is then at its end."""
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
