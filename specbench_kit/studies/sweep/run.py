"""One sweep: from a trace, which is recorded first if there is none, to a table, plots and break-even points.

Also here: points at which a method stops, or starts, to be faster than autoregressive decoding at the server;
summaries of a sweep: lines along its first axis, their break-even points, and a table for other programs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from specbench_kit.core.errors import require
from specbench_kit.core.plain_text import csv_text
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.fields import Value
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import TOO_FEW
from specbench_kit.metrics.vocabulary import METRICS
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.studies.bench.lanes import BASELINE
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.sweep.axes import SweepAxis, with_options
from specbench_kit.studies.sweep.grid import SweepRow, replay_grid, synthetic_prompts
from specbench_kit.studies.sweep.settings import SweepPoint, SweepSettings
from specbench_kit.traces.draft_limits import lowered_limits
from specbench_kit.traces.replay import recording_deployment, require_replayable
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
        rows, _ = replay_grid(settings, points, None, partial(report, "decoding"))
        folder = _folder(settings, points, settings.draft)
        return _finish(folder, settings, _describe(settings, None, points), rows)
    if dataset is not None:
        folder = _folder(settings, points, dataset.digest)
        path = folder / "trace.parquet"
        record(settings.recording, dataset, path, settings.max_draft, partial(report, "recording"))
        trace = TraceFile(path)
    else:
        assert settings.trace is not None
        trace = TraceFile(settings.trace)
        for spec in dict.fromkeys(spec for point in points for spec in point.specs.values()):
            require_replayable(parse_method(spec), trace.header)
        folder = _folder(settings, points, provenance.hash_file(trace.path))
    require(len(trace) > 0, f"the trace {trace.path} holds no request: there is nothing to replay")
    rows, methods = replay_grid(settings, points, trace, partial(report, "replaying"))
    run = {**_describe(settings, trace, points), **({"methods": methods} if methods else {})}
    return _finish(folder, settings, run, rows)


def _folder(settings: SweepSettings, points: Sequence[SweepPoint], digest: str) -> Path:
    deployments = [describe(point.deployment) if point.deployment else None for point in points]
    defining = {**settings.described(), "deployments": deployments, "digest": digest}
    return unused_folder(settings.out, "sweep", Path(settings.deployment).stem, defining)


def _finish(folder: Path, settings: SweepSettings, run: dict[str, Any], rows: list[SweepRow]) -> SweepOutcome:
    from specbench_kit.reports.render_html import write_page
    from specbench_kit.reports.sweep.plots import write_map, write_plots
    from specbench_kit.reports.sweep.report import SweepDescription, build

    axes = settings.axes()
    summary = summarise(rows, axes)
    caption = f"{run['dataset']['name']}, {run['requests']} requests, deployment {run['deployment']['name']}"
    write_plots(folder / "plots", lines(rows, axes), axes[0], summary["break_even"], summary["edge"], caption)
    write_map(folder / "plots", summary["fastest"], axes, caption)
    write_text(folder / "sweep.csv", csv_text(summary["rows"]))
    write_page(folder, build(SweepDescription.read(run), summary))
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


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One method along the first axis, with the other axes held constant; `points` are its rows by the first value."""

    label: str
    series: str
    points: Mapping[Value, SweepRow]


def lines(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> list[SweepLine]:
    """Return the lines in the order of the rows."""
    first, *constant = axes
    points: dict[tuple[str, str], dict[Value, SweepRow]] = {}
    for row in rows:
        # The label names the constant values that distinguish a method's lines.
        values = {axis.key: row.values[axis.key] for axis in constant if len(axis.values) > 1}
        fields = [f"{axis.key}={values[axis.key]}" for axis in constant if axis.key in values and axis.method is None]
        label = ", ".join([with_options(row.series, values), *fields])
        points.setdefault((label, row.series), {})[row.values[first.key]] = row
    return [SweepLine(label, series, by_value) for (label, series), by_value in points.items()]


def summarise(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    methods = [line for line in lines(rows, axes) if line.series != BASELINE]
    drafting_at_edge = [
        line for line in methods if all(row.overall.get("colocated_ratio") is not None for row in line.points.values())
    ]
    return {
        "axes": {axis.key: list(axis.values) for axis in axes},
        "break_even": [_break_even(line, axes[0], "speedup") for line in methods],
        "edge": [_break_even(line, axes[0], "colocated_ratio") for line in drafting_at_edge],
        "fastest": list(_fastest(rows)),
        "rows": [_table_row(row) for row in rows],
    }


def _fastest(rows: Sequence[SweepRow]) -> Iterator[dict[str, object]]:
    """Yield for every grid point the methods with the highest and the next highest speedup."""
    by_point: dict[tuple[Value, ...], list[SweepRow]] = {}
    for row in rows:
        by_point.setdefault(tuple(row.values.values()), []).append(row)
    for point in by_point.values():
        best, *slower = sorted(point, key=lambda row: -row.overall["speedup"])
        second = slower[0] if slower else best
        yield {
            "place": dict(best.values),
            "method": best.spec,
            "speedup": best.overall["speedup"],
            "next": second.spec,
            "lead": best.overall["speedup"] / second.overall["speedup"],
        }


def _break_even(line: SweepLine, axis: SweepAxis, metric: str) -> dict[str, object]:
    """Return where a ratio of the line is above 1; only an axis of numbers has crossings between its values."""
    ratios = {value: row.overall[metric] for value, row in line.points.items()}
    faster = [value for value, ratio in ratios.items() if ratio > 1]
    result = {"method": line.label, "axis": axis.key, "faster_at": faster}
    if any(row.overall["speedup_units"] < FEWEST_UNITS for row in line.points.values()):
        return {**result, "faster_at": [], "verdict": TOO_FEW, "crossings": []}
    if not axis.numbers:
        verdict = "everywhere" if len(faster) == len(ratios) else "in part" if faster else "nowhere"
        return {**result, "verdict": verdict, "crossings": []}
    numeric = break_even(axis.numbers, list(ratios.values()))
    return {**result, "verdict": numeric.verdict, "crossings": [asdict(crossing) for crossing in numeric.crossings]}


def _table_row(row: SweepRow) -> dict[str, object]:
    overall = row.overall
    low, high = overall["intervals"]["speedup"] or (None, None)
    typical_low, typical_high = overall["intervals"].get("typical_speedup") or (None, None)
    return {
        **row.values,
        "method": row.spec,
        **{metric.name: overall.get(metric.name) for metric in METRICS if metric.traits.in_sweeps},
        "speedup_low": low,
        "speedup_high": high,
        "typical_speedup": overall.get("typical_speedup"),
        "typical_speedup_low": typical_low,
        "typical_speedup_high": typical_high,
        "ttft_mean_s": overall["ttft"]["mean"],
        "tpot_mean_s": overall["tpot"]["mean"],
        "tpot_p95_s": overall["tpot"]["p95"],
        **{f"{phase}_s": seconds for phase, seconds in overall["phase_seconds"].items()},
    }


FasterRange = Literal["everywhere", "nowhere", "in part"]
"""The part of an axis on which a method is faster."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """The speedup passes 1 between two neighbours on the grid, at `at` by linear interpolation.

    `stops` is True if the method is faster below and slower above the crossing.
    """

    low: float
    high: float
    at: float
    stops: bool


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The part of an axis on which a method is faster, and the crossings in between."""

    verdict: FasterRange
    crossings: tuple[Crossing, ...]


def break_even(values: Sequence[float], speedups: Sequence[float]) -> BreakEven:
    """Return where the speedups along an axis are above 1; exactly 1 is not faster."""
    grid = sorted(zip(values, speedups, strict=True))
    faster = [speedup > 1 for _, speedup in grid]
    if all(faster) or not any(faster):
        return BreakEven("everywhere" if all(faster) else "nowhere", ())
    crossings = [
        Crossing(low, high, low + (high - low) * (before - 1) / (before - after), stops=before > 1)
        for (low, before), (high, after) in pairwise(grid)
        if (before > 1) != (after > 1)
    ]
    return BreakEven("in part", tuple(crossings))
