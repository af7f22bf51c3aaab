"""One sweep: from a trace, which is recorded first if there is none, to a table, plots and
break-even points.

At a break-even point a method stops, or starts, to be faster than autoregressive decoding at the
server.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Literal

from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.fields import Value
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import TOO_FEW
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.study import finish
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.parts import KeptParts, unfinished_parts
from specbench_kit.serving.parallel import Workers, require_cluster
from specbench_kit.studies.bench.replay import dataset_of
from specbench_kit.studies.recording.trace import record_once
from specbench_kit.studies.sweep.axes import SweepAxis
from specbench_kit.studies.sweep.grid import replay_grid, synthetic_prompts
from specbench_kit.studies.sweep.kind import SWEEP, SweepStudy
from specbench_kit.studies.sweep.settings import SweepPoint, SweepSettings
from specbench_kit.studies.sweep.summary import (
    BreakEven,
    Crossing,
    FastestMethod,
    SweepLine,
    SweepRow,
    SweepSummary,
    lines,
)
from specbench_kit.traces.draft_limits import lowered_limits
from specbench_kit.traces.replay import recording_deployment, require_replayable
from specbench_kit.traces.trace import TraceFile


def run_sweep(
    settings: SweepSettings, dataset: LoadedDataset | None, report: ProgressCallback
) -> SweepStudy:
    """Record or read a trace, replay it, and write the results.

    `dataset` is recorded if the settings name no trace; with a synthetic pair there is neither.
    """
    points = settings.points()
    if settings.backend == "ray":
        require_cluster()
    if settings.synthetic:
        parts = _parts(settings, settings.draft)
        rows, _ = replay_grid(
            settings, points, None, partial(report, "decoding"), _workers(settings, parts)
        )
        summary = summarise(rows, settings.axes())
        return finish(SWEEP, parts.folder, _describe(settings, None, points), summary, parts)
    if dataset is not None:
        parts = _parts(settings, dataset.digest)
        recording, longest = settings.recording, settings.max_draft
        trace = record_once(
            parts, recording, dataset, longest, partial(report, "recording"), resume=settings.resume
        )
    else:
        assert settings.trace is not None
        trace = TraceFile(settings.trace, settings.limit)
        for spec in dict.fromkeys(spec for point in points for spec in point.specs.values()):
            require_replayable(parse_method(spec), trace.header)
        parts = _parts(settings, provenance.hash_file(trace.path))
    require(len(trace) > 0, f"the trace {trace.path} holds no request: there is nothing to replay")
    rows, methods = replay_grid(
        settings, points, trace, partial(report, "replaying"), _workers(settings, parts)
    )
    run = {**_describe(settings, trace, points), **({"methods": methods} if methods else {})}
    return finish(SWEEP, parts.folder, run, summarise(rows, settings.axes()), parts)


def _parts(settings: SweepSettings, digest: str) -> KeptParts:
    """Return the points of a new sweep that are done, which are none, or of the one that is
    resumed.
    """
    defining = {**settings.defining(), "digest": digest}
    if settings.resume:
        return unfinished_parts(settings.out, "sweep", defining)
    return KeptParts(
        unused_folder(settings.out, "sweep", Path(settings.deployment).stem, defining), defining
    )


def _workers(settings: SweepSettings, parts: KeptParts) -> Workers:
    return Workers(settings.jobs, settings.backend, parts)


def _describe(
    settings: SweepSettings, trace: TraceFile | None, points: Sequence[SweepPoint]
) -> RunFields:
    """Return the content of `run.json`; `deployment` is that of the first point."""
    deployment = points[0].deployment or (recording_deployment(trace.header) if trace else None)
    assert deployment is not None
    inputs: RunFields
    if trace is not None:
        dtype = trace.recording.config.dtype
        inputs = {
            "dataset": stated(dataset_of(trace)) or {"name": trace.path.stem},
            "models": stated(trace.recording.models),
            "trace": stated(trace.describe()),
            "requests": len(trace),
            **lowered_limits(
                {spec for point in points for spec in point.specs.values()}, trace.header
            ),
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


def summarise(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> SweepSummary:
    """Return what was found: the rows, the fastest method at every point, and where methods stop to
    pay off.
    """
    break_even = []
    edge = []
    values: dict[str, list[Value]] = {axis.key: list(axis.values) for axis in axes}
    for line in lines(rows, values):
        if line.series == BASELINE:
            continue
        overall = [row.overall for row in line.points.values()]
        break_even.append(_break_even(line, axes[0], [metrics.speedup for metrics in overall]))
        ratios = [metrics.colocated_ratio for metrics in overall]
        if None not in ratios:
            edge.append(_break_even(line, axes[0], ratios))
    return SweepSummary(values, break_even, edge, list(_fastest(rows)), list(rows))


def _fastest(rows: Sequence[SweepRow]) -> Iterator[FastestMethod]:
    """Yield for every grid point the methods with the highest and the next highest speedup."""
    by_point: dict[tuple[Value, ...], list[tuple[float, SweepRow]]] = {}
    for row in rows:
        speedup = row.overall.speedup
        assert speedup is not None
        by_point.setdefault(tuple(row.values.values()), []).append((speedup, row))
    for point in by_point.values():
        point.sort(key=lambda entry: -entry[0])
        speedup, best = point[0]
        next_speedup, second = point[min(1, len(point) - 1)]
        yield FastestMethod(best.values, best.spec, speedup, second.spec, speedup / next_speedup)


def _break_even(line: SweepLine, axis: SweepAxis, ratios: Sequence[float | None]) -> BreakEven:
    """Return where a ratio of the line is above 1; only an axis of numbers has crossings between
    its values.
    """
    overall = [row.overall for row in line.points.values()]
    if any((metrics.speedup_units or 0) < FEWEST_UNITS for metrics in overall):
        return BreakEven(line.label, axis.key, [], TOO_FEW, [])
    known = [ratio or 0.0 for ratio in ratios]
    faster = [value for value, ratio in zip(line.points, known, strict=True) if ratio > 1]
    if axis.numbers:
        seconds = [metrics.makespan_s for metrics in overall]
        return BreakEven(line.label, axis.key, faster, *break_even(axis.numbers, known, seconds))
    verdict = "everywhere" if len(faster) == len(known) else "in part" if faster else "nowhere"
    return BreakEven(line.label, axis.key, faster, verdict, [])


FasterRange = Literal["everywhere", "nowhere", "in part"]
"""The part of an axis on which a method is faster."""


def break_even(
    values: Sequence[float], speedups: Sequence[float], seconds: Sequence[float | None] = ()
) -> tuple[FasterRange, list[Crossing]]:
    """Return where the speedups along an axis are above 1, and the crossings in between; exactly 1
    is not faster.

    `seconds` are the method's own, at every value. Crossings are where its time and its rival's are equal. Both are
    straight lines in the round trip, in the size of a message over one bandwidth and in the seconds of a forward, so
    that their difference is interpolated; a speedup, which is their ratio, is no straight line in any of these.
    Without `seconds`, the rival's are taken to be the same at all values.
    """
    faster = [speedup > 1 for speedup in speedups]
    if all(faster) or not any(faster):
        return "everywhere" if all(faster) else "nowhere", []
    own_s = [
        second or (1 / speedup if speedup else 1.0)
        for second, speedup in zip_longest(seconds, speedups)
    ]
    lost_s = [second * (1 - speedup) for second, speedup in zip(own_s, speedups, strict=True)]
    crossings = []
    for (low, before_s), (high, after_s) in pairwise(sorted(zip(values, lost_s, strict=True))):
        if (before_s < 0) != (after_s < 0):
            at = low + (high - low) * before_s / (before_s - after_s)
            crossings.append(Crossing(low, high, at, stops=before_s < 0))
    return "in part", crossings
