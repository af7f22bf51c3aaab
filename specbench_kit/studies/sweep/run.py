"""One sweep: from a trace, recorded first where there is none, to a table, plots and break-even points."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.csv_text import csv_text
from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.sweep.grid import SweepRow, prompts_of, replay_grid
from specbench_kit.studies.sweep.settings import GridPoint, SweepSettings
from specbench_kit.studies.sweep.summary import lines, summarise
from specbench_kit.traces.replay import recorded
from specbench_kit.traces.trace import TraceFile

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What a sweep leaves: its folder, what was run, and its numbers."""

    folder: Path
    run: Fields
    summary: Fields


def run_sweep(settings: SweepSettings, dataset: LoadedDataset | None, report: ProgressCallback) -> SweepOutcome:
    """Record or read, replay, write. `dataset` is recorded where the settings name no trace."""
    points = settings.points()
    if settings.synthetic:
        rows = replay_grid(settings, points, None, lambda done, planned: report("decoding", done, planned))
        return _finish(_folder(settings, points, settings.draft), settings, None, points, rows)
    if dataset is not None:
        folder = _folder(settings, points, dataset.digest)
        trace = _record(settings, dataset, folder / "trace.parquet", report)
    else:
        assert settings.trace is not None
        trace = TraceFile(settings.trace)
        folder = _folder(settings, points, provenance.hash_file(trace.path))
    if not len(trace):
        raise SkitError(f"the trace {trace.path} holds no request: there is nothing to replay")
    rows = replay_grid(settings, points, trace, lambda done, planned: report("replaying", done, planned))
    return _finish(folder, settings, trace, points, rows)


def _record(settings: SweepSettings, dataset: LoadedDataset, path: Path, report: ProgressCallback) -> TraceFile:
    record(settings.recording, dataset, path, settings.max_draft, lambda *progress: report("recording", *progress))
    return TraceFile(path)


def _folder(settings: SweepSettings, points: Sequence[GridPoint], digest: str) -> Path:
    deployments = [describe(point.deployment) if point.deployment else None for point in points]
    defining = {**settings.described(), "deployments": deployments, "digest": digest}
    return unused_folder(settings.out, "sweep", Path(settings.deployment).stem, defining)


def _finish(
    folder: Path, settings: SweepSettings, trace: TraceFile | None, points: Sequence[GridPoint], rows: list[SweepRow]
) -> SweepOutcome:
    from specbench_kit.reports.sweep.map import write_map
    from specbench_kit.reports.sweep.plots import write_plots
    from specbench_kit.reports.sweep.report import render

    axes = settings.axes()
    run, summary = _describe(settings, trace, points), summarise(rows, axes)
    write_plots(folder / "plots", lines(rows, axes), axes[0], summary["break_even"], summary["edge"], _where(run))
    write_map(folder / "plots", summary["fastest"], axes, _where(run))
    write_text(folder / "sweep.csv", csv_text(summary["rows"]))
    write_text(folder / "report.md", render(run, summary))
    write_text(folder / "run.json", to_json(run))
    write_text(folder / "summary.json", to_json(summary))
    return SweepOutcome(folder, run, summary)


def _describe(settings: SweepSettings, trace: TraceFile | None, points: Sequence[GridPoint]) -> Fields:
    """The content of `run.json`; `deployment` is that of the first point."""
    deployment = points[0].deployment or (recorded(trace.header) if trace else None)
    assert deployment is not None
    return {
        "command": "sweep",
        **(_of_trace(trace) if trace else _of_pair(settings)),
        "config": {**settings.described(), "dtype": trace.header.run["config"]["dtype"] if trace else "float32"},
        "time_kind": "modelled",
        "deployment": describe(deployment),
        **provenance.collect(settings.argv),
    }


def _of_trace(trace: TraceFile) -> Fields:
    made = trace.header.run
    return {
        "dataset": made.get("dataset") or {"name": trace.path.stem},
        "models": made["models"],
        "trace": trace.describe(),
        "requests": len(trace),
    }


def _of_pair(settings: SweepSettings) -> Fields:
    count = prompts_of(settings).requests
    return {
        "dataset": {"name": "random tokens", "count": count, "source": "a random generator"},
        "models": {"target": {"name": "synthetic/target"}, "draft": {"name": settings.draft}},
        "requests": count,
    }


def _where(run: Fields) -> str:
    return f"{run['dataset']['name']}, {run['requests']} requests, deployment {run['deployment']['name']}"
