"""One run of `skit simulate` or `skit capacity`: from settings to a folder with tables, plots and
report.

Rows get the figures that papers derive from them, and their ranges between the ends of what derived
times may be.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path

from msgspec import to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import described_readings
from specbench_kit.core.option import OptionValues
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.core.typed_json import Written, stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import corners, describe
from specbench_kit.methods.spec import parse_method
from specbench_kit.papers.comparison import compare_published
from specbench_kit.papers.experiment import Experiment
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.reports.study import Study, finish
from specbench_kit.runs import provenance
from specbench_kit.runs.document import LoweredOption
from specbench_kit.runs.folder import slug, unused_folder, write_text
from specbench_kit.runs.parts import KeptParts, input_hashes, unfinished_parts
from specbench_kit.serving.events import timeline, write_events
from specbench_kit.serving.figures import (
    AXES,
    CapacityRange,
    FigureEnd,
    FigureRange,
    Figures,
    GroupFigures,
    Interval,
    SearchedRow,
    SeedSearch,
    mean_of,
)
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.options import CapacityRule, Objective
from specbench_kit.serving.parallel import Workers, require_cluster, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.serving import capacity, simulation_grid
from specbench_kit.studies.serving.capacity import find_capacity
from specbench_kit.studies.serving.kind import CAPACITY, SIMULATION, R, ServingKind
from specbench_kit.studies.serving.presets import describe_preset
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import GridPoint, ServingSeries, ServingSettings
from specbench_kit.studies.serving.simulation_grid import GridRow
from specbench_kit.studies.serving.summary import (
    CapacitySummary,
    ServingDescription,
    ServingSummary,
    SimulationSummary,
)
from specbench_kit.traces.recorded_run import RecordedRun

FEW_DEVICE_S = 20_000.0
"""Seconds of devices that take less than a second to simulate."""
Window = tuple[float, float]
"""Start and end of a timeline, in simulated seconds."""


@dataclass(frozen=True, slots=True)
class NamedPreset:
    """A preset with its name."""

    name: str
    preset: Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """A run of either command; `dataset` is recorded first if a series states no acceptance.

    `show` gets the result as soon as it is known: figures take longer than a small simulation.
    """

    settings: ServingSettings
    dataset: LoadedDataset | None = None
    chosen: NamedPreset | None = None
    report: ProgressCallback
    show: Callable[[ServingDescription, ServingSummary], None] = lambda *_: None

    def simulate(
        self, events: bool = False, window: Window | None = None
    ) -> Study[ServingDescription, SimulationSummary]:
        """Simulate a grid; store all `events`, and for a `window` a timeline of each series' first
        point.
        """
        parts, builder = self._begin("simulate", {"events": events, "window": window})
        # To start processes takes longer than to simulate a few devices.
        jobs = 1 if self.settings.device_s <= FEW_DEVICE_S else self.settings.jobs
        workers = Workers(jobs, self.settings.backend, parts)
        folder = parts.folder
        # The last one of equal keys stays, so that reversed points leave each series' first.
        first_points = {point.series: point for point in reversed(self.settings.points())}

        def in_timeline(point: GridPoint, seed: int) -> bool:
            return (
                window is not None
                and seed == self.settings.seed
                and first_points[point.series] == point
            )

        def sink(point: GridPoint, seed: int, result: SimulationResult) -> None:
            if events:
                varied = [axis for axis in AXES if len(getattr(self.settings, axis)) > 1]
                coordinates = [
                    f"{axis}-{value}"
                    for axis, value in point.coordinates().items()
                    if axis in varied
                ]
                name = slug("-".join([point.series.label, *coordinates, f"seed-{seed}"]))
                write_events(folder / "events", name, result)
            if window is not None and in_timeline(point, seed):
                _write_timeline(folder, point, result, window)

        rows = simulation_grid.simulate_grid(
            self.settings,
            builder,
            workers,
            lambda point, seed: events or in_timeline(point, seed),
            sink,
            partial(self.report, "simulating"),
        )
        report = partial(self.report, "simulating the range of derived times")
        ranges = simulate_ranges(self.settings, builder, rows, workers, report)
        summary = simulation_grid.summarise(rows, ranges)
        return self._finish(SIMULATION, parts, builder, summary)

    def capacity(self, rule: CapacityRule) -> Study[ServingDescription, CapacitySummary]:
        """Search the capacity of every series under every SLO."""
        parts, builder = self._begin("capacity", asdict(rule))
        workers = Workers(self.settings.jobs, self.settings.backend, parts)
        rows = capacity.find_capacities(
            self.settings, rule, builder, workers, partial(self.report, "searching")
        )
        report = partial(self.report, "searching the range of derived times")
        ranges = search_ranges(self.settings, rule, builder, rows, workers, report)
        summary = capacity.summarise(rows, rule, ranges)
        return self._finish(CAPACITY, parts, builder, summary)

    def _begin(self, command: str, arguments: OptionValues) -> tuple[KeptParts, ScenarioBuilder]:
        """Return the parts of a new or a resumed run and a builder, after recording a trace if
        there has to be one.
        """
        settings = self.settings
        series = settings.series()
        subject = (
            self.chosen.name
            if self.chosen
            else "-".join(dict.fromkeys(entry.system for entry in series))
        )
        digest = self.dataset.digest if self.dataset else None
        described = settings.described()
        defining = {**described, **arguments, "digest": digest, **input_hashes(described)}
        if settings.backend == "ray":
            require_cluster()
        builder = ScenarioBuilder(settings)
        for entry in series:
            builder.require_lengths(entry)
        if settings.resume:
            parts = unfinished_parts(settings.out, command, defining)
        else:
            parts = KeptParts(unused_folder(settings.out, command, subject, defining), defining)
        if self.dataset is None:
            return parts, builder
        # Anything wrong is reported before the recording, which takes minutes. A search for
        # capacity may find that a scenario cannot be served, which is a result.
        for entry in series:
            builder.source(entry)
        for point in settings.points():
            try:
                scenario = builder.scenario(point)
            except SkitError:
                if command == "simulate":
                    raise
                continue
            if command == "capacity":
                # Answers that are still to be recorded may all be as long as allowed.
                recorded_tokens = (
                    settings.recording.max_new_tokens if point.series.acceptance is None else 0
                )
                scenario.check_due(settings.objective, recorded_tokens)
        self._require_predictors(series, builder)
        # Recording loads models; a stated acceptance needs none.
        from specbench_kit.studies.recording.trace import record_once

        report = partial(self.report, "recording")
        recording, longest = settings.recording, settings.max_draft
        trace = record_once(parts, recording, self.dataset, longest, report, resume=settings.resume)
        return parts, ScenarioBuilder(settings, trace)

    def _require_predictors(
        self, series: Sequence[ServingSeries], builder: ScenarioBuilder
    ) -> None:
        """Raise SkitError for methods that are to replay the recording and lack what they need of
        its pair.
        """
        from specbench_kit.deployments.placing import environment
        from specbench_kit.traces.replay import identify_pair

        pair = identify_pair(self.settings.recording.target, self.settings.recording.draft)
        for entry in series:
            if entry.acceptance is None:
                parse_method(entry.method).prepare(environment(pair, builder.deployment(entry)))

    def _finish(
        self, kind: ServingKind[R], parts: KeptParts, builder: ScenarioBuilder, summary: R
    ) -> Study[ServingDescription, R]:
        """Write all files of the run; `deployment` in `run.json` is that of the first series."""
        preset = None
        if self.chosen:
            preset = describe_preset(self.chosen.name, self.chosen.preset)
            summary.published = compare_published(self.chosen.preset, flat_rows(summary))
        series = self.settings.series()
        recorded = builder.trace.recording if builder.trace else RecordedRun()
        lowered: dict[str, LoweredOption] = {}
        for entry in series:
            lowered |= builder.lowered_limits(entry)
        run = {
            "command": kind.command,
            "preset": preset,
            "time_kind": "modelled",
            "dataset": stated(recorded.dataset) or None,
            "models": stated(recorded.models),
            "config": self.settings.described(),
            "series": [_describe_series(entry, builder) for entry in series],
            "deployment": describe(builder.deployment(series[0])),
            "deployments": {
                entry.deployment: describe(builder.deployment(entry)) for entry in series
            },
            **({"lowered_limits": lowered} if lowered else {}),
            **described_readings(builder.readings()),
            **provenance.collect(self.settings.argv, arithmetic=self.dataset is None),
        }
        self.show(ServingDescription.read(run), summary)
        return finish(kind, parts.folder, run, summary, parts)


def _describe_series(series: ServingSeries, builder: ScenarioBuilder) -> Written:
    typical = builder.source(series).typical
    memory, origin = builder.least_memory(series)
    system = series.serves
    return {
        "label": series.label,
        "system": series.system,
        "summary": system.summary,
        "scheduler": series.scheduler,
        "method": series.method,
        "drafting": system.drafting,
        "prefix_cache": system.prefix_cache,
        "acceptance": provenance.without_folders(series.acceptance) if series.acceptance else None,
        "typical": {**typical._asdict(), "committed": typical.committed},
        "deployment": series.deployment,
        "target": builder.target(series),
        "servers": series.servers,
        "router": series.router,
        **builder.recorded(series),
        "kv": {
            "tokens": memory.tokens if isfinite(memory.tokens) else None,
            "context": memory.context if isfinite(memory.context) else None,
            "origin": origin,
        },
    }


def _write_timeline(
    folder: Path, point: GridPoint, result: SimulationResult, window: Window
) -> None:
    from specbench_kit.reports.timeline.timeline import chrome_trace

    about = {
        "series": point.series.label,
        "devices": point.devices,
        "slo": point.slo,
        "time": "modelled",
    }
    trace = chrome_trace(timeline(result, *window), about)
    name = f"timeline-{slug(point.series.label)}.json"
    write_text(
        folder / name, json.dumps(to_builtins(trace), ensure_ascii=False, allow_nan=False) + "\n"
    )


def flat_rows(summary: ServingSummary) -> list[FigureRow]:
    """Return the rows of a summary, and those derived from them, as published experiments name
    their figures.
    """
    rows = list(map(FigureRow.of, summary.rows))
    if isinstance(summary, CapacitySummary):
        return rows
    against_first = map(FigureRow.of, summary.against_first)
    return [*rows, *against_first, *derived_rows(rows)]


def derived_rows(rows: Sequence[FigureRow]) -> list[FigureRow]:
    """Return further rows at the points of simulated ones."""
    return [*fewer_violations(rows), *compute_shares(rows)]


def fewer_violations(rows: Sequence[FigureRow]) -> Iterator[FigureRow]:
    """Yield, for every series but the first, how much less often it violates each class's SLO than
    the first does.
    """
    reference = {
        tuple(row.point.items()): row.figure("figures.classes")
        for row in rows
        if row.series == rows[0].series
    }
    for row in rows:
        of_first = reference.get(tuple(row.point.items()))
        if row.series == rows[0].series or of_first is None:
            continue
        classes = {}
        for name, group in row.figure("figures.classes").items():
            before = mean_of(of_first.get(name, {}), "violation_rate")
            after = mean_of(group, "violation_rate")
            if before is not None and after is not None:
                classes[name] = {"fewer_violations": {"mean": before - after}}
        yield replace(row, figures={"classes": classes})


def compute_shares(rows: Sequence[FigureRow]) -> Iterator[FigureRow]:
    """Yield the share of missed deadlines that is attributed to the batch itself."""
    for row in rows:
        compute = row.figure("figures.violations.compute_dominant.mean")
        queue = row.figure("figures.violations.queue_dominant.mean")
        if compute + queue:
            yield replace(row, figures={"compute_share": {"mean": compute / (compute + queue)}})


SEARCHED_SERIES = 2
SEARCHED_SETTINGS = 4
"""The best series of so many settings of a search for capacity are searched at the ends as well,
and no others.
"""
COARSE = 0.03
"""Relative precision of a capacity at an end, which takes fewer simulations than a finer one."""


def simulate_ranges(
    settings: ServingSettings,
    builder: ScenarioBuilder,
    rows: Sequence[GridRow],
    workers: Workers,
    report: CountCallback,
) -> list[FigureRange]:
    """Return the range of every point whose deployment has derived times, by the first seed; empty
    if none has.

    A range holds the mean over all seeds that is shown as well.

    The slowest device may be unable to keep the promise at all: such an end serves nothing.
    """
    work: list[tuple[GridPoint, str, Scenario | None]] = []
    for point in settings.points():
        scenario = builder.scenario(point)
        work += [(point, end, changed) for end, changed in _ends(scenario)]
    runs = [
        (scenario, settings.seed, partial(_measure, settings.objective))
        for *_, scenario in work
        if scenario
    ]
    outcomes = workers.map(simulate_and_measure, runs, Figures)
    ends: dict[GridPoint, dict[str, FigureEnd]] = {}
    for done, (point, end, attainable) in enumerate(work, 1):
        figures = FigureEnd(0.0, 1.0)
        if attainable:
            overall = next(outcomes).overall
            figures = FigureEnd(overall.throughput, overall.violation_rate)
        ends.setdefault(point, {})[end] = figures
        report(done, len(work))
    shown = dict(zip(settings.points(), (row.row.figures.overall for row in rows), strict=True))
    return [_row(point, shown, ends) for point in ends]


def _ends(scenario: Scenario) -> Iterator[tuple[str, Scenario | None]]:
    """Yield the scenario at each end of the derived times, those of unequal servers included; None at
    an end at which it is impossible.
    """
    for end, deployment in corners(scenario.deployment):
        servers = scenario.servers
        if isinstance(servers, tuple):
            servers = tuple(
                replace(
                    server, deployment=dict(corners(server.deployment)).get(end, server.deployment)
                )
                for server in servers
            )
        try:
            yield end, replace(scenario, deployment=deployment, servers=servers)
        except SkitError:
            yield end, None


def search_ranges(
    settings: ServingSettings,
    rule: CapacityRule,
    builder: ScenarioBuilder,
    rows: Sequence[SearchedRow],
    workers: Workers,
    report: CountCallback,
) -> list[CapacityRange]:
    """Return the range of the best series' capacities in the first settings of a search; empty if
    times have none.

    Every end is searched with the first seed, and a range holds the mean over all seeds that is
    shown as well. The slowest device may be unable to keep the promise at all: such an end serves
    nothing.
    """
    work: list[tuple[GridPoint, str, Scenario | None]] = []
    best = _best(settings.points(), rows)
    for point in best:
        scenario = builder.scenario(point)
        work += [(point, end, changed) for end, changed in _ends(scenario)]
    coarse = replace(rule, resolution=max(rule.resolution, COARSE))
    searches = [(scenario, settings.seed, coarse) for *_, scenario in work if scenario]
    capacities = workers.map(find_capacity, searches, SeedSearch)
    ends: dict[GridPoint, dict[str, float]] = {}
    for done, (point, end, attainable) in enumerate(work, 1):
        ends.setdefault(point, {})[end] = next(capacities).load if attainable else 0.0
        report(done, len(work))
    return [_capacity_row(point, best, ends) for point in ends]


def _best(points: Sequence[GridPoint], rows: Sequence[SearchedRow]) -> dict[GridPoint, SearchedRow]:
    """Return the series with the highest capacities in each of the first settings, the best one
    first.
    """
    settings: dict[str, list[tuple[GridPoint, SearchedRow]]] = {}
    for point, row in zip(points, rows, strict=True):
        if row.seeds:
            settings.setdefault(_setting(point), []).append((point, row))
    first = list(settings.values())[:SEARCHED_SETTINGS]
    return dict(
        entry
        for alike in first
        for entry in sorted(alike, key=lambda entry: -entry[1].capacity.mean)[:SEARCHED_SERIES]
    )


def _setting(point: GridPoint) -> str:
    return repr(point.coordinates())


def _capacity_row(
    point: GridPoint, rows: Mapping[GridPoint, SearchedRow], ends: dict[GridPoint, dict[str, float]]
) -> CapacityRange:
    """Return a series' capacity at every end, its range, and what share of the best series' it is
    there.
    """
    own = ends[point]
    mean = rows[point].capacity.mean
    best = next(other for other in ends if _setting(other) == _setting(point))
    ratios = [own[end] / ends[best][end] for end in own if best != point and ends[best].get(end)]
    if ratios and rows[best].capacity.mean:
        ratios.append(mean / rows[best].capacity.mean)
    return CapacityRange(
        **point.without_load,
        unit=rows[point].unit,
        mean=mean,
        ends=own,
        capacity=(min(*own.values(), mean), max(*own.values(), mean)),
        against=best.series.label if ratios else None,
        capacity_ratio=_range(ratios),
    )


def _measure(objective: Objective, scenario: Scenario, result: SimulationResult) -> Figures:
    return compute_metrics(scenario, result, objective)


def _row(
    point: GridPoint,
    shown: Mapping[GridPoint, GroupFigures[Interval]],
    ends: dict[GridPoint, dict[str, FigureEnd]],
) -> FigureRange:
    """Return a point's figures at every end, their range, and its throughput over that of the first
    series there.
    """
    own = ends[point]
    first = next(other for other in ends if other.coordinates() == point.coordinates())
    throughput, late = shown[point].throughput.mean, shown[point].violation_rate
    ratios = []
    if first.series != point.series and shown[first].throughput.mean:
        ratios.append(throughput / shown[first].throughput.mean)
    for end, figures in own.items():
        reference = ends[first].get(end)
        if first.series != point.series and reference is not None and reference.throughput:
            ratios.append(figures.throughput / reference.throughput)
    return FigureRange(
        devices=point.devices,
        **point.without_load,
        ends=own,
        throughput=_range([throughput, *(figures.throughput for figures in own.values())]),
        violation_rate=_range(
            [late.mean if late else None, *(figures.violation_rate for figures in own.values())]
        ),
        against=first.series.label if ratios else None,
        throughput_ratio=_range(ratios),
    )


def _range(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None
