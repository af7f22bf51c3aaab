"""Runs as reports need them: complete if possible, else in part with a line on what is missing.

Also here: the content of a run's `summary.json`: what reports rely on, with types; made from the metrics' vocabulary.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from msgspec import NODEFAULT, Meta, Struct, defstruct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.core.plain_text import one_line_texts
from specbench_kit.core.typed_json import Count, JsonObject, convert, parse
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import request_metrics, summarise_run
from specbench_kit.metrics.units import batch_size
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, LISTS, METRICS
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.resumption import spans_interruption

Records = list[RequestRecord]

FILES = ("requests", "baseline")


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run: `fields` is its run.json, `summary` its summary.json, or what stands for it in an unfinished run.

    `problems` are lines on what could not be read.
    """

    path: Path
    fields: JsonObject
    records: Records
    baseline: Records
    summary: JsonObject
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """The method's spec."""
        return str(self.fields["method"])

    @property
    def dataset(self) -> JsonObject:
        """The dataset's part of run.json."""
        return self.fields.get("dataset") or {}


class RunReader:
    """Reads runs; files with the same content, such as the baseline of methods that ran together, are read once."""

    def __init__(self) -> None:
        self._by_content: dict[str, tuple[Records, list[str]]] = {}

    def read(self, path: Path) -> BenchmarkRun:
        """Return the run in a folder; SkitError if nothing of it can be read."""
        fields = RunDirectory.open(path).run
        if fields.get("method") is None:
            raise SkitError(f"{path / 'run.json'} names no method: it is not a run of skit bench")
        (records, problems), (baseline, baseline_problems) = (self._records(path / f"{name}.jsonl") for name in FILES)
        if not records:
            raise SkitError(f"{path / 'requests.jsonl'} holds no finished request: there is nothing to report")
        summary, summary_problems = _summary(path, fields, records, baseline)
        all_problems = (*problems, *baseline_problems, *summary_problems)
        return BenchmarkRun(path, fields, records, baseline, summary, all_problems)

    def _records(self, path: Path) -> tuple[Records, list[str]]:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            return [], [f"{_short_path(path)}: {error.strerror}: left out"]
        key = hashlib.sha256(content).hexdigest()
        if key not in self._by_content:
            self._by_content[key] = _parse_records(content)
        records, problems = self._by_content[key]
        return records, [f"{_short_path(path)}{problem}" for problem in problems]


def load_runs(paths: Sequence[Path]) -> tuple[list[BenchmarkRun], list[str]]:
    """Return the runs in these folders or right below them, and a line on each run that cannot be read.

    A folder without a run stands for the benchmark runs in it, oldest first. The lines contain no path of this machine,
    since reports are passed on. Raises SkitError if no run can be read.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        benchmarks = sorted(
            file.parent for file in path.glob("*/run.json") if (file.parent / "requests.jsonl").exists()
        )
        is_parent = not (path / "run.json").exists() and benchmarks
        folders |= dict.fromkeys(benchmarks if is_parent else [path])
    reader = RunReader()
    runs = []
    problems: dict[Path, str] = {}
    with gc_paused():
        for path in folders:
            try:
                runs.append(reader.read(path))
            except SkitError as error:
                problems[path] = str(error)
    if not runs:
        raise SkitError("; ".join(problems.values()))
    return runs, [line.replace(str(path), path.resolve().name) for path, line in problems.items()]


def _short_path(file: Path) -> str:
    return f"{file.parent.resolve().name}/{file.name}"


def _parse_records(content: bytes) -> tuple[Records, list[str]]:
    """Return the records of the lines that hold one, and a remark on every other line."""
    *lines, partial_line = content.split(b"\n")
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
    if partial_line:
        problems.append(f":{len(lines) + 1}: the last line was cut short: left out")
    return list(records.values()), problems


def _summary(path: Path, fields: JsonObject, records: Records, baseline: Records) -> tuple[JsonObject, list[str]]:
    """Return the content of summary.json; without a valid one, the metrics of the records, as of a partial run."""
    file = path / "summary.json"
    try:
        content: JsonObject = one_line_texts(parse(file.read_bytes()))
    except FileNotFoundError:
        problem = f"{path.resolve().name} has no summary.json: an unfinished run"
    except OSError as error:
        problem = f"{_short_path(file)} cannot be read ({error.strerror})"
    except ValueError as error:
        problem = f"{_short_path(file)} is not valid JSON ({error})"
    else:
        try:
            check_summary(content)
            return content, []
        except ValueError as error:
            problem = f"{_short_path(file)} is not a summary of this kit ({error})"
    planned = fields.get("requests") or len(records)
    failed = sum(record.finish_reason == "error" for record in records)
    summary = {
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
    return summary, [f"{problem}; its metrics are computed from the requests at hand"]


UNIT_WORDS = {"seconds": "seconds", "rate": "tokens per second", "times": "a factor", "share": "0 to 1"}
"""The units that are not clear from a definition."""


class RequestCounts(Struct):
    """The run's requests; `planned` are those that it was to decode."""

    planned: int
    finished: int
    failed: int


class DistributionValues(Struct):
    """Mean and percentiles in seconds; null if there are no values."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class LosslessCounts(Struct):
    """The comparison of all outputs with the baseline's, token for token."""

    compared: Count
    identical: Count
    ties: Annotated[Count, Meta(description="outputs whose difference is explained by rounding")]
    errors: Count
    lossless: Annotated[bool | None, Meta(description="true without errors, null if it is not known")] = None
    unjudged: Annotated[Count, Meta(description="outputs that differ where nothing is known of rounding")] = 0


@cache
def summary_document() -> type[Struct]:
    """Return the type of the document; every metric is a field with its definition as description."""
    phases = defstruct("PhaseValues", [(phase, float | None) for phase in PHASES])
    interval = Annotated[list[float], Meta(min_length=2, max_length=2)]
    lists: JsonObject = {
        **dict.fromkeys(("acceptance_at", "acceptance_at_conditional", "slo_attainment"), list[float | None]),
        **dict.fromkeys(("phase_seconds", "phase_share"), phases),
        "intervals": dict[str, interval | None],
    }
    fields: list[tuple[str, object, str]] = []
    for metric in METRICS:
        unit = UNIT_WORDS.get(metric.unit)
        description = f"{metric.definition} ({unit})" if unit else metric.definition
        fields.append((metric.name, int | None if metric.unit == "count" else float | None, description))
    fields += [(one.name, DistributionValues, one.definition) for one in DISTRIBUTIONS]
    fields += [(name, lists[name], definition) for name, definition in LISTS.items()]
    # Metrics that need nothing but requests are in every summary; the others need a baseline, a makespan or prices.
    required = {*request_metrics(RequestGroup([])), "intervals"}
    values = defstruct(
        "MetricValues",
        [
            (name, Annotated[kind, Meta(description=text)], NODEFAULT if name in required else None)
            for name, kind, text in sorted(fields, key=lambda field: field[0] not in required)
        ],
        namespace={"__doc__": "The metrics of a group of requests; null if a metric has no value."},
    )
    sides = [("overall", values), ("categories", dict[str, values])]  # type: ignore[valid-type]
    baseline = defstruct("BaselineSummary", sides, namespace={"__doc__": "The same metrics of the baseline."})
    return defstruct(
        "SummaryDocument",
        [
            ("method", str),
            ("requests", RequestCounts),
            *sides,
            ("baseline", baseline | None, None),
            ("lossless", LosslessCounts | None, None),
            ("sampling", JsonObject | None, None),
            ("pipeline", JsonObject | None, None),
            ("hidden_states", JsonObject | None, None),
            ("partial", bool, False),
            ("overlaps", bool, False),
        ],
        namespace={"__doc__": "The content of `summary.json`: every metric of a run, overall and by category."},
    )


def check_summary(content: JsonObject) -> None:
    """Raise ValueError if a parsed `summary.json` lacks what reports rely on, or has a field of a wrong type."""
    convert(summary_document(), content)
