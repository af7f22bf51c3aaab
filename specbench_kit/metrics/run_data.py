"""Runs as reports need them: read whole where that is possible, and in part with a line on what is missing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.core.plain_text import one_line_texts
from specbench_kit.core.renamed import with_current_names
from specbench_kit.core.typed_json import parse
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.metrics.summary_shape import is_summary
from specbench_kit.metrics.units import batch_size
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.resumption import spans_interruption

Fields = dict[str, Any]
Records = list[RequestRecord]

FILES = ("requests", "baseline")


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run: `fields` is its run.json, `summary` its summary.json, or what stands for it in an unfinished run.

    `problems` are lines on what could not be read.
    """

    path: Path
    fields: Fields
    records: Records
    baseline: Records
    summary: Fields
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """The method's spec."""
        return str(self.fields["method"])

    @property
    def dataset(self) -> Fields:
        """The dataset's part of run.json."""
        found: Fields = self.fields.get("dataset") or {}
        return found


class Reader:
    """Reads runs; files of one content, such as the baseline of methods that ran together, are read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Records, list[str]]] = {}

    def run(self, path: Path) -> BenchmarkRun:
        """The run in a folder; one that cannot be read at all is an error."""
        fields = RunDirectory.open(path).run
        if fields.get("method") is None:
            raise SkitError(f"{path / 'run.json'} names no method: it is not a run of skit bench")
        (records, wrong), (baseline, wrong_too) = (self._records(path / f"{name}.jsonl") for name in FILES)
        if not records:
            raise SkitError(f"{path / 'requests.jsonl'} holds no finished request: there is nothing to report")
        summary, problem = _summary(path, fields, records, baseline)
        return BenchmarkRun(path, fields, records, baseline, summary, (*wrong, *wrong_too, *problem))

    def _records(self, path: Path) -> tuple[Records, list[str]]:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            return [], [f"{_place(path)}: {error.strerror}: left out"]
        key = hashlib.sha256(content).hexdigest()
        if key not in self._known:
            self._known[key] = _parse(content)
        records, wrong = self._known[key]
        return records, [f"{_place(path)}{problem}" for problem in wrong]


def load_runs(paths: Sequence[Path]) -> tuple[list[BenchmarkRun], list[str]]:
    """The runs in these folders or right below them, and a line without this machine's paths for each unreadable one.

    An error where none can be read.
    """
    reader, runs = Reader(), []
    problems: dict[Path, str] = {}
    with gc_paused():
        for path in _folders(paths):
            try:
                runs.append(reader.run(path))
            except SkitError as error:
                problems[path] = str(error)
    if not runs:
        raise SkitError("; ".join(problems.values()))
    return runs, [line.replace(str(path), path.resolve().name) for path, line in problems.items()]


def _folders(paths: Sequence[Path]) -> list[Path]:
    """Run directories; a folder that is none stands for those of runs in it, oldest first."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(file.parent for file in path.glob("*/run.json") if _is_bench(file.parent))
        if not (path / "run.json").exists() and inside:
            found |= dict.fromkeys(inside)
        else:
            found[path] = None
    return list(found)


def _place(file: Path) -> str:
    """A file without the folders of this machine, since reports are passed on."""
    return f"{file.parent.resolve().name}/{file.name}"


def _is_bench(path: Path) -> bool:
    return (path / "requests.jsonl").exists()


def _parse(content: bytes) -> tuple[Records, list[str]]:
    """The records of the lines that hold one, and a remark on every other line."""
    *lines, rest = content.split(b"\n")
    records: dict[tuple[str, int], RequestRecord] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        try:
            record = RequestRecord.from_json(line)
        except ValueError as error:
            problems.append(f":{number}: not a request record ({error}): left out")
            continue
        if records.setdefault(record.key, record) is not record:
            problems.append(f":{number}: request '{record.request_id}' is recorded twice: the second is left out")
    if rest:
        problems.append(f":{len(lines) + 1}: the last line was cut short: left out")
    return list(records.values()), problems


def _summary(path: Path, fields: Fields, records: Records, baseline: Records) -> tuple[Fields, list[str]]:
    """What summary.json says; without a usable one, the metrics of the requests at hand, as a partial run's."""
    file = path / "summary.json"
    try:
        found = with_current_names(one_line_texts(parse(file.read_bytes())), _place(file))
        if is_summary(found):
            return found, []
        problem = f"{_place(file)} is not a summary of this kit"
    except FileNotFoundError:
        problem = f"{path.resolve().name} has no summary.json: an unfinished run"
    except OSError as error:
        problem = f"{_place(file)} cannot be read ({error.strerror})"
    except ValueError as error:
        problem = f"{_place(file)} is not valid JSON ({error})"
    return _stand_in(fields, records, baseline), [f"{problem}; its metrics are computed from the requests at hand"]


def _stand_in(fields: Fields, records: Records, baseline: Records) -> Fields:
    planned = fields.get("requests") or len(records)
    failed = sum(record.finish_reason == "error" for record in records)
    return {
        "method": fields["method"],
        "partial": len(records) < planned,
        "requests": {"planned": planned, "finished": len(records) - failed, "failed": failed},
        **summarise_run(
            records,
            baseline or None,
            fields.get("deployment"),
            timed=not spans_interruption(fields),
            batch_size=batch_size(fields),
        ),
        "lossless": None,
    }
