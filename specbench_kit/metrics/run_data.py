"""Runs as reports need them: complete if possible, else in part with a line on what is missing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.core.typed_json import convert, parse
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import known_class, known_method
from specbench_kit.metrics.along import acceptance_along
from specbench_kit.metrics.pipeline import summarise_pipeline, summarise_states
from specbench_kit.metrics.rounds import NO_REQUESTS, BesideBaseline, RequestGroup, RunRequests
from specbench_kit.metrics.run_summary import (
    PipelineMetrics,
    RequestCounts,
    RunSummary,
    SentStates,
    read_summary,
    typed_summary,
)
from specbench_kit.metrics.statistics import units_of
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.runs.deployment import DeploymentDescription
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunDocument

FILES = ("requests", "baseline")


@dataclass(frozen=True, slots=True)
class BenchmarkRun(BesideBaseline):
    """One run: `fields` is its run.json, `summary` its summary.json, or what stands for it in an
    unfinished run.

    `problems` are lines on what could not be read.
    """

    path: Path
    fields: RunDocument
    group: RequestGroup
    plain: RequestGroup
    summary: RunSummary
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """The method's spec."""
        return str(self.fields.method)


class RunReader:
    """Reads runs; files with the same content, such as the baseline of methods that ran together,
    are read once.
    """

    def __init__(self) -> None:
        self._by_content: dict[str, tuple[RequestGroup, list[str]]] = {}

    def read(self, path: Path) -> BenchmarkRun:
        """Return the run in a folder; SkitError if nothing of it can be read."""
        fields = RunDirectory.open(path).document
        if fields.method is None:
            reason = (
                f"was written by skit {fields.command}, whose pages lie in it: only runs of skit bench can be read here"
                if fields.command
                else "has a run.json that names no method: it is not a run of skit bench"
            )
            raise SkitError(f"{path} {reason}")
        (group, problems), (plain, baseline_problems) = (
            self._requests(path / f"{name}.jsonl") for name in FILES
        )
        if not group.records:
            raise SkitError(
                f"{path / 'requests.jsonl'} holds no finished request: there is nothing to report"
            )
        summary, summary_problems = _summary(path, fields, group, plain)
        all_problems = (*problems, *baseline_problems, *summary_problems)
        return BenchmarkRun(path, fields, group, plain, summary, all_problems)

    def _requests(self, path: Path) -> tuple[RequestGroup, list[str]]:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return NO_REQUESTS, []
        except OSError as error:
            return NO_REQUESTS, [f"{_short_path(path)}: {error.strerror}: left out"]
        key = hashlib.sha256(content).hexdigest()
        if key not in self._by_content:
            records, problems = _parse_records(content)
            self._by_content[key] = RequestGroup(records), problems
        group, problems = self._by_content[key]
        return group, [f"{_short_path(path)}{problem}" for problem in problems]


def holds_runs(folder: Path) -> bool:
    """Return whether a folder is a run's, or has such folders right below it."""
    return (folder / "run.json").exists() or any(folder.glob("*/run.json"))


def load_runs(paths: Sequence[Path]) -> tuple[list[BenchmarkRun], list[str]]:
    """Return the runs in these folders or right below them, and a line on each run that cannot be
    read.

    A folder without a run stands for the benchmark runs in it, oldest first. The lines contain no
    path of this machine, since reports are passed on. Raises SkitError if no run can be read.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        benchmarks = sorted(
            file.parent
            for file in path.glob("*/run.json")
            if (file.parent / "requests.jsonl").exists()
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


def _parse_records(content: bytes) -> tuple[list[RequestRecord], list[str]]:
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
            problems.append(
                f":{number}: request '{record.request_id}' is recorded twice: the second is left out"
            )
    if partial_line:
        problems.append(f":{len(lines) + 1}: the last line was cut short: left out")
    return list(records.values()), problems


def _summary(
    path: Path, fields: RunDocument, group: RequestGroup, plain: RequestGroup
) -> tuple[RunSummary, list[str]]:
    """Return the content of summary.json; without a valid one, the metrics of the records, as of a
    partial run.
    """
    file = path / "summary.json"
    try:
        content = parse(file.read_bytes())
    except FileNotFoundError:
        problem = f"{path.resolve().name} has no summary.json: an unfinished run"
    except OSError as error:
        problem = f"{_short_path(file)} cannot be read ({error.strerror})"
    except ValueError as error:
        problem = f"{_short_path(file)} is not valid JSON ({error})"
    else:
        try:
            return read_summary(content), []
        except ValueError as error:
            problem = f"{_short_path(file)} is not a summary of this kit ({error})"
    requests = RunRequests(group, plain)
    summary = measured_summary(fields, requests, known_method(str(fields.method)))
    return summary, [f"{problem}; its metrics are computed from the requests at hand"]


def measured_summary(
    run: RunDocument,
    requests: BesideBaseline,
    method: Method | None,
    oracle_throughput: float | None = None,
) -> RunSummary:
    """Return what `summary.json` says of a run's requests, but for their losslessness; `method` is
    None if this kit does not know it.
    """
    records = requests.records
    planned = run.requests or len(records)
    failed = sum(record.finish_reason == "error" for record in records)
    measured = summarise_run(
        requests.group,
        requests.plain if requests.baseline else None,
        placed(run.deployment, str(run.method)),
        oracle_throughput=oracle_throughput,
        timed=not run.spans_interruption,
        requests_per_unit=run.requests_per_unit,
        processes=run.config.processes,
    )
    pipeline = (
        summarise_pipeline(records, method.pipeline.stages) if method and method.pipeline else None
    )
    sent = summarise_states(records, states) if (states := run.hidden_states) else None
    return typed_summary(
        measured,
        method=str(run.method),
        partial=len(records) < planned,
        requests=RequestCounts(planned, len(records) - failed, failed),
        overlaps=method is not None and method.overlaps,
        pipeline=convert(PipelineMetrics, pipeline) if pipeline else None,
        hidden_states=convert(SentStates, sent) if sent else None,
        along=[]
        if pipeline
        else acceptance_along(
            requests.group.rounds, requests.group.finished, units_of(records, run.requests_per_unit)
        ),
    )


def placed(deployment: DeploymentDescription | None, method: str) -> DeploymentDescription | None:
    """Return a deployment with the draft model where the method has it, whatever the deployment
    says.
    """
    known = known_class(method)
    if deployment is None or known is None or known.placement is None:
        return deployment
    return replace(deployment, placement=known.placement)
