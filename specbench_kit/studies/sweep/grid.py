"""Every point of a sweep's grid in the time of its deployment: a trace is replayed, or a synthetic
pair decodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, structs

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import convert
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import described
from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts
from specbench_kit.methods.base import LONGEST_DRAFT
from specbench_kit.methods.selection import longest_draft
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.paired import (
    PairedSpeed,
    Side,
    limits_of_speedups,
    speedup,
    speedup_intervals,
)
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.run_data import placed
from specbench_kit.metrics.run_summary import metric_values
from specbench_kit.metrics.simultaneous import TableLimits
from specbench_kit.metrics.statistics import Units, units_of
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.metrics.vocabulary import BASELINE, MetricValues
from specbench_kit.runs import provenance
from specbench_kit.serving.parallel import Workers
from specbench_kit.studies.sweep.settings import SweepPoint, SweepSettings
from specbench_kit.studies.sweep.summary import SweepRow, SweptMethod
from specbench_kit.traces.candidate_trees import BeyondRecord
from specbench_kit.traces.draft_limits import fit_spec
from specbench_kit.traces.replay import (
    describe_replayed,
    prepare_for_replay,
    recording_deployment,
    replay,
)
from specbench_kit.traces.trace import TraceFile


class PointResult(Struct):
    """The rows of one point, and what each replayed method uses of its pair."""

    rows: list[SweepRow]
    described: list[SweptMethod]


def replay_grid(
    settings: SweepSettings,
    points: Sequence[SweepPoint],
    trace: TraceFile | None,
    report: CountCallback,
    workers: Workers,
) -> tuple[list[SweepRow], list[SweptMethod]]:
    """Return a row per point for autoregressive serving and for every method; without a trace, of a
    synthetic pair.

    Returned with what each replayed method uses of its pair, once for all deployments where it uses
    the same.
    """
    path, digest = (
        (None, "")
        if trace is None
        else (_path_everywhere(settings, trace), provenance.hash_file(trace.path))
    )
    rows = list[SweepRow]()
    described = list[SweptMethod]()
    report(0, len(points))
    try:
        work = [(settings, point, path, digest) for point in points]
        for done, result in enumerate(workers.map(work_on_point, work, PointResult), 1):
            rows += result.rows
            described += [
                description for description in result.described if description not in described
            ]
            report(done, len(points))
    finally:
        _grid.cache_clear()  # records are large
    return rows, described


def work_on_point(
    settings: SweepSettings, point: SweepPoint, trace: Path | None, digest: str
) -> PointResult:
    """Return the rows of one point, in any process that can read the trace; raise SkitError if it
    is another one.
    """
    grid = _grid(settings, trace, digest)
    grid.described = []
    return PointResult(list(grid.rows(point)), grid.described)


def _path_everywhere(settings: SweepSettings, trace: TraceFile) -> Path:
    """Return the path by which other processes and machines read the trace: bundled ones by their
    names.
    """
    given = settings.trace
    return given if given is not None and not given.exists() else trace.path.resolve()


@lru_cache(1)
def _grid(settings: SweepSettings, path: Path | None, digest: str) -> "_Grid":
    """Return the grid of a sweep, the same one for all points of it that a process works on one
    after the other.
    """
    if path is None:
        return _Grid(settings, None)
    trace = TraceFile(path, settings.limit)
    require(
        provenance.hash_file(trace.path) == digest,
        f"the trace {path} is another file on a node of the Ray cluster: put the same one there",
    )
    return _Grid(settings, trace)


def synthetic_prompts(settings: SweepSettings) -> SyntheticPrompts:
    """Return the prompts that a synthetic pair answers."""
    return SyntheticPrompts(
        requests=settings.prompts,
        output_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """A method's metrics in one deployment, and the times of its requests."""

    overall: MetricValues
    side: Side
    units: Units
    speed: PairedSpeed | None

    def within(self, limits: TableLimits | None) -> MetricValues:
        """Return the metrics with intervals of the speedup that hold together with those of a
        point's other methods.
        """
        intervals = speedup_intervals(self.speed, limits)
        return structs.replace(self.overall, intervals=self.overall.intervals | intervals)


@dataclass
class _Grid:
    """Caches metrics, since the axes of a point do not concern every method."""

    settings: SweepSettings
    trace: TraceFile | None
    baselines: dict[Deployment, list[RequestRecord]] = field(default_factory=dict)
    metrics: dict[tuple[str, Deployment, str, int], "_Measured"] = field(default_factory=dict)
    described: list[SweptMethod] = field(default_factory=list)

    def rows(self, point: SweepPoint) -> Iterator[SweepRow]:
        deployment = point.deployment
        if deployment is None:
            assert self.trace is not None
            deployment = recording_deployment(self.trace.header)
        longest = longest_draft(point.specs.values())
        measured: dict[tuple[str, str], _Measured] = {}
        for series, given_spec in {BASELINE: BASELINE, **point.specs}.items():
            spec = given_spec if self.trace is None else fit_spec(given_spec, self.trace.header)
            key = (
                spec,
                deployment,
                *(("", LONGEST_DRAFT) if spec == BASELINE else (point.draft, longest)),
            )
            if key not in self.metrics:
                self.metrics[key] = self._measure(spec, deployment, point.draft, longest)
            measured[series, spec] = self.metrics[key]
        own = [entry for (series, _), entry in measured.items() if series != BASELINE]
        limits = limits_of_speedups([entry.side for entry in own], own[0].units) if own else None
        for (series, spec), entry in measured.items():
            yield SweepRow(point.values, series, spec, entry.within(limits))

    def _measure(self, spec: str, deployment: Deployment, draft: str, longest: int) -> "_Measured":
        if spec == BASELINE or deployment not in self.baselines:
            # Only the last baseline is kept: deployments change rarely along the grid, and records
            # are large.
            self.baselines = {deployment: self._decode(BASELINE, deployment, draft, longest)}
        baseline = self.baselines[deployment]
        records = baseline if spec == BASELINE else self._decode(spec, deployment, draft, longest)
        summary = summarise_run(
            RequestGroup(records),
            RequestGroup(baseline),
            placed(described(deployment), spec),
        )
        units = units_of(records)
        side = Side.of(records, baseline)
        return _Measured(metric_values(summary["overall"]), side, units, speedup(side, units))

    def _decode(
        self, spec: str, deployment: Deployment, draft: str, longest: int
    ) -> list[RequestRecord]:
        if self.trace is None:
            return synthetic_prompts(self.settings).decode(spec, deployment, draft)
        size = self.settings.batch_size
        seed = self.settings.seed
        method = prepare_for_replay(
            parse_method(spec), self.trace, deployment, size, longest_draft=longest
        )
        inputs = describe_replayed(method, self.trace)
        description = convert(SweptMethod, {"method": provenance.without_folders(spec), **inputs})
        if inputs and description not in self.described:
            self.described.append(description)
        records = replay(
            method, self.trace.header, self.trace, deployment=deployment, batch_size=size, seed=seed
        )
        try:
            return list(records)
        except BeyondRecord as error:
            raise SkitError(f"{spec}: {error}") from error
