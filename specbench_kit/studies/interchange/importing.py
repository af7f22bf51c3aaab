"""From a file of another tool to a run directory or a trace, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import FileReading, described_readings
from specbench_kit.core.option import MODELS, RUN, Option
from specbench_kit.core.typed_json import Written
from specbench_kit.runs.document import RunFields
from specbench_kit.studies.interchange.base import ForeignRun, ForeignTrace, formats

if TYPE_CHECKING:
    from specbench_kit.studies.bench.conclusion import Conclusion

CONFIG = (
    "max_new_tokens",
    "batch_size",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "limit",
    "device",
    "dtype",
)
ENVIRONMENT: RunFields = {
    "argv": None,
    "git_commit": None,
    "git_dirty": None,
    "versions": None,
    "platform": None,
    "hardware": None,
}
"""Fields of `run.json` about the software and the machine, which other tools do not record."""
MODEL_FIELDS = ("name", "hash", "parameters")


@dataclass(frozen=True, slots=True)
class ImportNames:
    """Names that a file does not contain, or that replace those of the file; None keeps the
    file's.
    """

    method: Annotated[
        str | None, Option("Name of the method (default: the name in the file).", RUN)
    ] = None
    dataset: Annotated[str | None, Option("Name of the prompts.", RUN)] = None
    target: Annotated[str | None, Option("Name of the target.", MODELS)] = None
    draft: Annotated[str | None, Option("Name of the draft model.", MODELS)] = None


@dataclass(frozen=True, slots=True)
class _Import:
    """One call of `skit import`."""

    path: Path
    format_name: str
    names: ImportNames
    argv: tuple[str, ...]

    def dataset(self, count: int) -> Written:
        name = self.names.dataset or formats.get(self.format_name).dataset
        return {
            "name": name,
            "source": "imported",
            "location": self.path.name,
            "digest": None,
            "total": None,
            "count": count,
        }

    def reading(self, foreign: ForeignRun | ForeignTrace) -> FileReading:
        """Return what the file was taken for, and what was left out of it."""
        rows = len(foreign.records) if isinstance(foreign, ForeignRun) else len(foreign.requests)
        file_format = formats.get(self.format_name)
        return FileReading(
            self.path.name,
            f"{file_format.tool}'s {file_format.holds}",
            rows,
            left_out=foreign.left_out,
            doubts=foreign.doubts if isinstance(foreign, ForeignRun) else (),
        )

    def models(self, draft: str | None) -> Written:
        unknown = dict.fromkeys(MODEL_FIELDS)
        return {
            "target": {**unknown, "name": self.names.target},
            "draft": {**unknown, "name": draft},
        }

    def origin(self, notes: Sequence[str]) -> Written:
        """Return the tool and the file, and the software that imported it."""
        from specbench_kit.runs import provenance

        environment = provenance.collect(self.argv)
        return {
            "tool": formats.get(self.format_name).tool,
            "format": self.format_name,
            "file": self.path.name,
            "sha256": provenance.hash_file(self.path),
            "at": environment["started_at"],
            "by": {
                key: environment[key] for key in ("argv", "git_commit", "git_dirty", "versions")
            },
            "notes": list(notes),
        }


def import_file(
    path: Path,
    name: str,
    baseline: Path | None,
    names: ImportNames,
    out: Path,
    argv: tuple[str, ...],
) -> "Conclusion":
    """Make a run directory from a file and, with `baseline`, from the file of the autoregressive
    baseline.
    """
    from specbench_kit.metrics.run_summary import RequestCounts, typed_summary
    from specbench_kit.metrics.summary import summarise_run
    from specbench_kit.runs.directory import RunDirectory
    from specbench_kit.studies.bench.conclusion import Conclusion, RequestReader, write_report

    file_format = formats.get(name)()
    foreign = file_format.read(path)
    foreign_baseline = file_format.read(baseline) if baseline else None
    source = _Import(path, name, names, argv)
    description = _describe(source, foreign, has_baseline=foreign_baseline is not None)
    run = RunDirectory.create(out, description)
    for record in foreign.records:
        run.append(record)
    for record in foreign_baseline.records if foreign_baseline else ():
        run.append_baseline(record)
    requests = RequestReader()(run)
    records = requests.group.records
    failed = sum(record.finish_reason == "error" for record in records)
    summary = typed_summary(
        summarise_run(requests.group, requests.plain if foreign_baseline else None, None),
        method=str(run.document.method),
        requests=RequestCounts(len(records), len(records) - failed, failed),
    )
    conclusion = Conclusion(run, summary, requests)
    write_report(conclusion)
    run.write_summary(summary)
    return conclusion


def _describe(source: _Import, foreign: ForeignRun, *, has_baseline: bool) -> RunFields:
    """Return the content of `run.json`; null stands for what the tool does not record."""
    prompts = {record.request_id for record in foreign.records}
    repeats = 1 + max(record.repeat for record in foreign.records)
    return {
        "method": source.names.method or foreign.method,
        "dataset": source.dataset(len(prompts)),
        "models": source.models(source.names.draft),
        "config": {
            **dict.fromkeys(CONFIG),
            **foreign.config,
            "repeats": repeats,
            "baseline": has_baseline,
        },
        "time_kind": "measured",
        "requests": len(foreign.records),
        "sample_reason": None,
        "imported": source.origin(foreign.notes),
        **described_readings([source.reading(foreign)]),
        "started_at": foreign.started_at,
        **ENVIRONMENT,
    }


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace that was made from a file of another tool."""

    path: Path
    requests: int
    offsets: int
    notes: Sequence[str]
    reading: FileReading


def import_trace(
    path: Path, name: str, names: ImportNames, out: Path, argv: tuple[str, ...]
) -> ImportedTrace:
    """Make a trace from a file that records acceptance."""
    from specbench_kit.traces.trace import DRAFT_STATISTICS, STEP_TIMES, TraceHeader
    from specbench_kit.traces.writing import TraceWriter

    foreign = formats.get(name)().read_trace(path, names.draft)
    source = _Import(path, name, names, argv)
    reading = source.reading(foreign)
    run = {
        "dataset": source.dataset(len(foreign.requests)),
        "models": source.models(foreign.draft or names.draft),
        "config": dict.fromkeys(("max_new_tokens", "seed", "limit", "dtype")),
        "imported": source.origin(foreign.notes),
        **described_readings([reading]),
        "started_at": None,
        **ENVIRONMENT,
    }
    lacks = (DRAFT_STATISTICS, STEP_TIMES, *foreign.lacks)
    header = TraceHeader(foreign.max_draft, 0.0, (0.0,) * (foreign.max_draft + 1), run, lacks=lacks)
    with TraceWriter(out, header) as writer:
        for request in foreign.requests:
            writer.append(request)
    offsets = sum(len(request.output_ids) for request in foreign.requests)
    return ImportedTrace(out, len(foreign.requests), offsets, foreign.notes, reading)


def export_run(path: Path, name: str, out: Path) -> None:
    """Write a run directory as a file of that format."""
    from specbench_kit.runs.directory import RunDirectory

    file_format = formats.get(name)()
    run = RunDirectory.find(path)
    if not run.records():
        raise SkitError(
            f"{run.path / 'requests.jsonl'} holds no finished request: there is nothing to export"
        )
    file_format.save(run, out)
