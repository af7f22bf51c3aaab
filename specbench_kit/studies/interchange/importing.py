"""From a file of another tool to a run directory or a trace, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import MODELS, RUN, Option
from specbench_kit.studies.interchange.base import ForeignRun, ForeignTrace, Format, formats

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory
    from specbench_kit.studies.bench.outputs.conclusion import Conclusion
    from specbench_kit.traces.trace import TraceHeader

Fields = dict[str, Any]

CONFIG = ("max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed", "limit", "device", "dtype")
NOT_HERE = ("argv", "git_commit", "git_dirty", "versions", "platform", "hardware")
"""What a run says of its machine."""
MODEL: Mapping[str, None] = dict.fromkeys(("name", "hash", "parameters"))


@dataclass(frozen=True, slots=True)
class ImportNames:
    """What a file does not say, or says in other words; None leaves it as it is."""

    method: Annotated[str | None, Option("What to call the method; as in the file if left out.", RUN)] = None
    dataset: Annotated[str | None, Option("What the prompts are.", RUN)] = None
    target: Annotated[str | None, Option("Name of the target.", MODELS)] = None
    draft: Annotated[str | None, Option("Name of the draft model.", MODELS)] = None


def import_file(
    path: Path, name: str, baseline: Path | None, names: ImportNames, out: Path, argv: tuple[str, ...]
) -> "Conclusion":
    """Make a run directory of a file and, beside it, the file of the autoregressive baseline."""
    from specbench_kit.runs.directory import RunDirectory
    from specbench_kit.studies.bench.outputs.conclusion import Conclusion, write_report

    form = formats.get(name)()
    found = form.read(path)
    plain = form.read(baseline) if baseline else None
    run = RunDirectory.create(out, _describe(name, found, plain, path, names, argv))
    for record in found.records:
        run.append(record)
    for record in plain.records if plain else ():
        run.append_baseline(record)
    conclusion = Conclusion(run, _summarise(run))
    write_report(conclusion)
    run.write_summary(conclusion.summary)
    return conclusion


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace file that was made of another tool's."""

    path: Path
    requests: int
    offsets: int
    notes: Sequence[str]


def import_trace(path: Path, name: str, names: ImportNames, out: Path, argv: tuple[str, ...]) -> ImportedTrace:
    """Make a trace of a file that tells what was accepted."""
    from specbench_kit.traces.writing import TraceWriter

    form = formats.get(name)()
    found = form.read_trace(path, names.draft)
    with TraceWriter(out, _header(name, found, path, names, argv)) as writer:
        for request in found.requests:
            writer.append(request)
    offsets = sum(len(request.output_ids) for request in found.requests)
    return ImportedTrace(out, len(found.requests), offsets, found.notes)


def export_run(path: Path, name: str, out: Path) -> None:
    """Write a run directory as a file of that format."""
    from specbench_kit.runs.directory import RunDirectory

    form, run = formats.get(name)(), RunDirectory.find(path)
    if not run.records():
        raise SkitError(f"{run.path / 'requests.jsonl'} holds no finished request: there is nothing to export")
    form.save(run, out)


def _describe(
    name: str, found: ForeignRun, plain: ForeignRun | None, path: Path, names: ImportNames, argv: tuple[str, ...]
) -> Fields:
    """The content of `run.json`: null is what the tool does not say."""
    form = formats.get(name)
    prompts = {record.request_id for record in found.records}
    return {
        "method": names.method or found.method,
        "dataset": _dataset(form, path, names, len(prompts)),
        "models": _models(names, names.draft),
        "config": {**dict.fromkeys(CONFIG), **found.config, "repeats": _repeats(found), "baseline": plain is not None},
        "time_kind": "measured",
        "requests": len(found.records),
        "sample_reason": None,
        "imported": _imported(name, path, found.notes, argv),
        "started_at": found.started_at,
        **dict.fromkeys(NOT_HERE),
    }


def _header(name: str, found: ForeignTrace, path: Path, names: ImportNames, argv: tuple[str, ...]) -> "TraceHeader":
    """Of a trace: its `run` has the form of `run.json`, and null for what the tool does not say."""
    from specbench_kit.traces.trace import DRAFT_STATISTICS, STEP_TIMES, TraceHeader

    run = {
        "dataset": _dataset(formats.get(name), path, names, len(found.requests)),
        "models": _models(names, found.draft or names.draft),
        "config": dict.fromkeys(("max_new_tokens", "seed", "limit", "dtype")),
        "imported": _imported(name, path, found.notes, argv),
        **dict.fromkeys(("started_at", *NOT_HERE)),
    }
    lacks = (DRAFT_STATISTICS, STEP_TIMES, *found.lacks)
    return TraceHeader(found.max_draft, 0.0, (0.0,) * (found.max_draft + 1), run, lacks=lacks)


def _dataset(form: type[Format], path: Path, names: ImportNames, count: int) -> Fields:
    place = {"source": "imported", "location": path.name, "digest": None, "total": None, "count": count}
    return {"name": names.dataset or form.dataset, **place}


def _models(names: ImportNames, draft: str | None) -> Fields:
    return {"target": {**MODEL, "name": names.target}, "draft": {**MODEL, "name": draft}}


def _imported(name: str, path: Path, notes: Sequence[str], argv: tuple[str, ...]) -> Fields:
    """Whose file it was, and who imported it."""
    from specbench_kit.runs import provenance

    here = provenance.collect(argv)
    return {
        "tool": formats.get(name).tool,
        "format": name,
        "file": path.name,
        "sha256": provenance.hash_file(path),
        "at": here["started_at"],
        "by": {key: here[key] for key in ("argv", "git_commit", "git_dirty", "versions")},
        "notes": list(notes),
    }


def _repeats(found: ForeignRun) -> int:
    return 1 + max(record.repeat for record in found.records)


def _summarise(run: "RunDirectory") -> Fields:
    from specbench_kit.metrics.summary import summarise_run

    records = run.records()
    failed = sum(record.finish_reason == "error" for record in records)
    return {
        "method": run.run["method"],
        "partial": False,
        "requests": {"planned": len(records), "finished": len(records) - failed, "failed": failed},
        "overlaps": False,
        **summarise_run(records, run.baseline_records() or None, None),
        "pipeline": None,
        "lossless": None,
    }
