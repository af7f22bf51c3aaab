"""Replay every point of a sweep's grid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specbench_kit.core.progress import CountCallback
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.studies.bench.lanes import BASELINE
from specbench_kit.studies.sweep.axes import Values
from specbench_kit.studies.sweep.settings import GridPoint, SweepSettings
from specbench_kit.studies.synthetic.prompts import SyntheticPrompts
from specbench_kit.traces.replay import ready, recorded, replay
from specbench_kit.traces.trace import TraceFile

Metrics = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One method at one point; `series` is the method as it was given, `spec` as it ran."""

    values: Values
    series: str
    spec: str
    overall: Metrics


def replay_grid(
    settings: SweepSettings, points: Sequence[GridPoint], trace: TraceFile | None, report: CountCallback
) -> list[SweepRow]:
    """A row per point for autoregressive serving and for every method; without a trace, of a synthetic pair."""
    grid, rows = _Grid(settings, trace), list[SweepRow]()
    for done, point in enumerate(points):
        report(done, len(points))
        rows += grid.rows(point)
    report(len(points), len(points))
    return rows


def prompts_of(settings: SweepSettings) -> SyntheticPrompts:
    """What a synthetic pair is asked."""
    asked = settings.recording
    found = SyntheticPrompts(output_tokens=asked.max_new_tokens, batch_size=settings.batch_size, seed=settings.seed)
    return replace(found, requests=asked.limit or found.requests)


@dataclass
class _Grid:
    """Remembers what it replayed, since an axis need not concern every method."""

    settings: SweepSettings
    trace: TraceFile | None
    baselines: dict[Deployment, list[RequestRecord]] = field(default_factory=dict)
    known: dict[tuple[str, Deployment, str], Metrics] = field(default_factory=dict)
    draft: str = ""

    def rows(self, point: GridPoint) -> Iterator[SweepRow]:
        deployment, self.draft = point.deployment or self._recorded(), point.draft
        for series, spec in {BASELINE: BASELINE, **point.specs}.items():
            key = spec, deployment, "" if spec == BASELINE else point.draft
            if key not in self.known:
                self.known[key] = self._measure(spec, deployment)
            yield SweepRow(point.values, series, spec, self.known[key])

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

    def _recorded(self) -> Deployment:
        assert self.trace is not None
        return recorded(self.trace.header)

    def _replay(self, spec: str, deployment: Deployment) -> list[RequestRecord]:
        if self.trace is None:
            return prompts_of(self.settings).decode(spec, deployment, self.draft)
        method = ready(parse_method(spec), self.trace, deployment)
        size, seed = self.settings.batch_size, self.settings.seed
        records = replay(method, self.trace.header, self.trace, deployment=deployment, batch_size=size, seed=seed)
        return list(records)
