"""Replay every point of a sweep's grid."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench_kit.bench.lanes import BASELINE
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.sweeps.axes import Values
from specbench_kit.sweeps.settings import Point, Settings
from specbench_kit.traces.replay import ready, recorded, replay
from specbench_kit.traces.trace import TraceFile

Metrics = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One method at one point; `series` is the method as it was given, `spec` as it ran."""

    values: Values
    series: str
    spec: str
    overall: Metrics


def replay_grid(
    settings: Settings, points: Sequence[Point], trace: TraceFile, report: Callable[[int, int], None]
) -> list[Row]:
    """A row per point for autoregressive serving and for every method."""
    grid, rows = _Grid(settings, trace), list[Row]()
    for done, point in enumerate(points):
        report(done, len(points))
        rows += grid.rows(point)
    report(len(points), len(points))
    return rows


@dataclass
class _Grid:
    """Remembers what it replayed, since an axis need not concern every method."""

    settings: Settings
    trace: TraceFile
    baselines: dict[Deployment, list[RequestRecord]] = field(default_factory=dict)
    known: dict[tuple[str, Deployment], Metrics] = field(default_factory=dict)

    def rows(self, point: Point) -> Iterator[Row]:
        deployment = point.deployment or recorded(self.trace.header)
        for series, spec in {BASELINE: BASELINE, **point.specs}.items():
            if (spec, deployment) not in self.known:
                self.known[spec, deployment] = self._measure(spec, deployment)
            yield Row(point.values, series, spec, self.known[spec, deployment])

    def _measure(self, spec: str, deployment: Deployment) -> Metrics:
        described, records = describe(deployment), self._replay(spec, deployment)
        if spec == BASELINE:
            self.baselines = {deployment: records}  # the grid changes deployments slowly, and records are large
        summary = summarise_run(records, self._baseline(deployment), described, batch_size=self.settings.batch_size)
        overall: Metrics = summary["overall"]
        return overall

    def _baseline(self, deployment: Deployment) -> list[RequestRecord]:
        if deployment not in self.baselines:
            self.baselines = {deployment: self._replay(BASELINE, deployment)}
        return self.baselines[deployment]

    def _replay(self, spec: str, deployment: Deployment) -> list[RequestRecord]:
        method = ready(parse_method(spec), self.trace, deployment)
        size, seed = self.settings.batch_size, self.settings.seed
        records = replay(method, self.trace.header, self.trace, deployment=deployment, batch_size=size, seed=seed)
        return list(records)
