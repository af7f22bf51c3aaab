"""One sweep: from a trace, which is recorded first if there is none, to a table, plots and break-even points."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specbench_kit.core.csv_text import csv_text
from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.sweep.grid import SweepRow, replay_grid, synthetic_prompts
from specbench_kit.studies.sweep.settings import SweepPoint, SweepSettings
from specbench_kit.studies.sweep.summary import lines, summarise
from specbench_kit.traces.draft_limits import lowered_limits
from specbench_kit.traces.replay import recording_deployment
from specbench_kit.traces.trace import TraceFile


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The folder of a sweep, its `run.json` and its `summary.json`."""

    folder: Path
    run: dict[str, Any]
    summary: dict[str, Any]


def run_sweep(settings: SweepSettings, dataset: LoadedDataset | None, report: ProgressCallback) -> SweepOutcome:
    """Record or read a trace, replay it, and write the results.

    `dataset` is recorded if the settings name no trace; with a synthetic pair there is neither.
    """
    points = settings.points()
    if settings.synthetic:
        rows = replay_grid(settings, points, None, partial(report, "decoding"))
        return _finish(_folder(settings, points, settings.draft), settings, None, points, rows)
    if dataset is not None:
        folder = _folder(settings, points, dataset.digest)
        path = folder / "trace.parquet"
        record(settings.recording, dataset, path, settings.max_draft, partial(report, "recording"))
        trace = TraceFile(path)
    else:
        assert settings.trace is not None
        trace = TraceFile(settings.trace)
        folder = _folder(settings, points, provenance.hash_file(trace.path))
    require(len(trace) > 0, f"the trace {trace.path} holds no request: there is nothing to replay")
    rows = replay_grid(settings, points, trace, partial(report, "replaying"))
    return _finish(folder, settings, trace, points, rows)


def _folder(settings: SweepSettings, points: Sequence[SweepPoint], digest: str) -> Path:
    deployments = [describe(point.deployment) if point.deployment else None for point in points]
    defining = {**settings.described(), "deployments": deployments, "digest": digest}
    return unused_folder(settings.out, "sweep", Path(settings.deployment).stem, defining)


def _finish(
    folder: Path, settings: SweepSettings, trace: TraceFile | None, points: Sequence[SweepPoint], rows: list[SweepRow]
) -> SweepOutcome:
    from specbench_kit.reports.page_files import write_page
    from specbench_kit.reports.sweep.map import write_map
    from specbench_kit.reports.sweep.plots import write_plots
    from specbench_kit.reports.sweep.report import build

    axes = settings.axes()
    run, summary = _describe(settings, trace, points), summarise(rows, axes)
    caption = f"{run['dataset']['name']}, {run['requests']} requests, deployment {run['deployment']['name']}"
    write_plots(folder / "plots", lines(rows, axes), axes[0], summary["break_even"], summary["edge"], caption)
    write_map(folder / "plots", summary["fastest"], axes, caption)
    write_text(folder / "sweep.csv", csv_text(summary["rows"]))
    write_page(folder, build(run, summary))
    write_text(folder / "run.json", to_json(run))
    write_text(folder / "summary.json", to_json(summary))
    return SweepOutcome(folder, run, summary)


def _describe(settings: SweepSettings, trace: TraceFile | None, points: Sequence[SweepPoint]) -> dict[str, Any]:
    """Return the content of `run.json`; `deployment` is that of the first point."""
    deployment = points[0].deployment or (recording_deployment(trace.header) if trace else None)
    assert deployment is not None
    if trace is not None:
        dtype = trace.header.run["config"]["dtype"]
        inputs = {
            "dataset": trace.header.run.get("dataset") or {"name": trace.path.stem},
            "models": trace.header.run["models"],
            "trace": trace.describe(),
            "requests": len(trace),
            **lowered_limits({spec for point in points for spec in point.specs.values()}, trace.header),
        }
    else:
        dtype = "float32"
        count = synthetic_prompts(settings).requests
        inputs = {
            "dataset": {"name": "random tokens", "count": count, "source": "a random generator"},
            "models": {"target": {"name": "synthetic/target"}, "draft": {"name": settings.draft}},
            "requests": count,
        }
    return {
        "command": "sweep",
        **inputs,
        "config": {**settings.described(), "dtype": dtype},
        "time_kind": "modelled",
        "deployment": describe(deployment),
        **provenance.collect(settings.argv),
    }
