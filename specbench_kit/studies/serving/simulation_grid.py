"""Simulations of every point of a grid with every seed, and their summary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import structs

from specbench_kit.core.plain_text import CsvRow
from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.serving.figures import (
    AXES,
    AxisValue,
    FigureRange,
    Figures,
    GroupFigures,
    Interval,
    PointFields,
    ResponseLatencies,
    SeriesDifference,
    ServingPoint,
    SimulatedRow,
)
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.options import Objective
from specbench_kit.serving.parallel import Workers, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.seeds import estimate, over_seeds
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings
from specbench_kit.studies.serving.summary import SimulationSummary

RATES = (
    "violation_rate", "starved_rate", "deadline_miss_rate", "slow_round_rate", "throughput", "goodput",
    "acceptance_length", "submitted_per_verify",
)  # fmt: skip
"""Metrics of the CSV that are single numbers."""
DISTRIBUTIONS = ("speed", "queue_s", "verify_s", "interference")
"""Metrics of the CSV that have a mean and a 95th percentile."""
KNEE_RISE = 0.05
"""Least rise of the violation rate over the range for which a knee is looked for."""


@dataclass(frozen=True, slots=True)
class GridRow:
    """One point with its figures over all seeds, and those of each seed."""

    row: SimulatedRow
    by_seed: Sequence[Figures]


def simulate_grid(
    settings: ServingSettings,
    builder: ScenarioBuilder,
    workers: Workers,
    keeps_result: Callable[[GridPoint, int], bool],
    sink: Callable[[GridPoint, int, SimulationResult], None],
    report: CountCallback,
) -> list[GridRow]:
    """Return one row per point; `sink` gets the results of the points and seeds that `keeps_result`
    selects.
    """
    points = settings.points()
    runs = [
        (point, seed)
        for point in points
        for seed in range(settings.seed, settings.seed + settings.seeds)
    ]
    scenarios = {point: builder.scenario(point) for point in points}
    measure = partial(_measure, settings.objective)
    work = [
        (scenarios[point], seed, partial(measure, keeps_result(point, seed)))
        for point, seed in runs
    ]
    metrics: dict[GridPoint, list[Figures]] = {point: [] for point in points}
    report(0, len(runs))
    # A result leaves its process only if it is kept: event logs are large, metrics small. A study
    # that keeps results simulates all of its points again when it is resumed.
    kind = None if any(keeps_result(*run) for run in runs) else tuple[Figures, None]
    outcomes: Iterator[tuple[Figures, SimulationResult | None]]
    outcomes = workers.map(simulate_and_measure, work, kind)
    for done, ((point, seed), (of_seed, result)) in enumerate(zip(runs, outcomes, strict=True), 1):
        metrics[point].append(of_seed)
        if result is not None:
            sink(point, seed, result)
        report(done, len(runs))
    rows = []
    for point, by_seed in metrics.items():
        row = SimulatedRow(devices=point.devices, **point.without_load, figures=over_seeds(by_seed))
        rows.append(GridRow(row, by_seed))
    return rows


def _measure(
    objective: Objective, keeps_result: bool, scenario: Scenario, result: SimulationResult
) -> tuple[Figures, SimulationResult | None]:
    return compute_metrics(scenario, result, objective), result if keeps_result else None


def summarise(rows: Sequence[GridRow], ranges: Sequence[FigureRange] = ()) -> SimulationSummary:
    """Return the summary without published numbers."""
    simulated = [row.row for row in rows]
    return SimulationSummary(
        axes=axes_of(simulated),
        rows=simulated,
        against_first=differences(rows),
        knees=knees(simulated),
        guards=guards(
            simulated, lambda row: row.figures.overall.violation_rate, smaller_is_better=True
        ),
        ranges=list(ranges),
    )


def axes_of(rows: Sequence[ServingPoint], axes: Sequence[str] = AXES) -> dict[str, list[AxisValue]]:
    """Return the values that rows have on each axis."""
    return {axis: _values(rows, axis) for axis in axes}


def _values(rows: Sequence[ServingPoint], axis: str) -> list[AxisValue]:
    return list(dict.fromkeys(row.at(axis) for row in rows))


def differences(rows: Sequence[GridRow]) -> list[SeriesDifference]:
    """Return every other series compared to the first at the same point, seed by seed."""
    reference = rows[0].row.series
    first = {row.row.place: row for row in rows if row.row.series == reference}
    compared = []
    for row in rows:
        place = row.row.place
        if row.row.series == reference or place not in first:
            continue
        # Equal seeds have the same workload, so their differences scatter less than the figures
        # themselves.
        ratios = []
        changes = []
        for own, other in zip(row.by_seed, first[place].by_seed, strict=True):
            if other.overall.throughput:
                ratios.append(own.overall.throughput / other.overall.throughput)
            if own.overall.violation_rate is not None and other.overall.violation_rate is not None:
                changes.append(own.overall.violation_rate - other.overall.violation_rate)
        compared.append(
            SeriesDifference(
                devices=row.row.devices,
                **row.row.without_load,
                against=reference,
                throughput_ratio=estimate(ratios) if ratios else None,
                violation_difference=estimate(changes) if changes else None,
            )
        )
    return compared


def point_of(row: ServingPoint) -> Mapping[str, AxisValue]:
    """Return the fields that name a row."""
    return {"series": row.series, **{axis: row.at(axis) for axis in AXES}}


R = TypeVar("R", bound=ServingPoint)


def guards(
    rows: Sequence[R], metric: Callable[[R], Interval | None], *, smaller_is_better: bool
) -> list[ServingPoint]:
    """Return, for each wrong estimator, the smallest guard time with which a metric is as good as
    with the exact one.

    The exact one is taken with its own smallest guard time. As good means within its interval over
    the seeds.
    """
    groups: dict[tuple[AxisValue, ...], list[R]] = {}
    for row in rows:
        fixed = (row.series, row.devices, row.slo, row.slo_scale)
        groups.setdefault(fixed, []).extend([row] if row.guard_s is not None else [])
    smallest = []
    for group in groups.values():
        exact_rows = [row for row in group if (row.estimator_factor, row.estimator_noise) == (1, 0)]
        if not exact_rows or len({row.guard_s for row in group}) < 2:
            continue
        exact = metric(min(exact_rows, key=lambda row: row.guard_s or 0.0))
        errors: dict[tuple[float, float], list[R]] = {}
        for row in group:
            errors.setdefault((row.estimator_factor, row.estimator_noise), []).append(row)
        errors.pop((1, 0))
        for candidates in errors.values():
            enough = [
                row.guard_s
                for row in candidates
                if row.guard_s is not None and _as_good(metric(row), exact, smaller_is_better)
            ]
            point: PointFields = {
                **candidates[0].without_load,
                "guard_s": min(enough, default=None),
            }
            smallest.append(ServingPoint(devices=candidates[0].devices, **point))
    return smallest


def _as_good(own: Interval | None, reference: Interval | None, smaller_is_better: bool) -> bool:
    if own is None or reference is None:
        return False
    bound = reference.high if smaller_is_better else reference.low
    bound = reference.mean if bound is None else bound
    return own.mean <= bound if smaller_is_better else own.mean >= bound


def knees(rows: Sequence[SimulatedRow]) -> list[ServingPoint]:
    """Return the number of devices at which the violation rate of each line over devices begins to
    rise.
    """
    lines: dict[tuple[AxisValue, ...], dict[float, SimulatedRow]] = {}
    for row in rows:
        if row.figures.overall.violation_rate is not None and row.devices is not None:
            line = (row.series, *(row.at(axis) for axis in AXES[1:]))
            lines.setdefault(line, {})[row.devices] = row
    found = []
    for members in lines.values():
        rates = {x: row.figures.overall.violation_rate for x, row in members.items()}
        devices = knee([(x, rate.mean) for x, rate in rates.items() if rate is not None])
        if devices is not None:
            member = members[devices]
            found.append(ServingPoint(devices=member.devices, **member.without_load))
    return found


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """Return x of the point farthest below the chord from the first to the last, on scales of equal
    length.

    None if there are fewer than three points, or if y rises by less than `KNEE_RISE`.
    """
    ordered = sorted(points)
    if len(ordered) < 3 or ordered[-1][1] - ordered[0][1] < KNEE_RISE:
        return None
    (first_x, first_y), (last_x, last_y) = ordered[0], ordered[-1]
    below = [
        ((x - first_x) / (last_x - first_x) - (y - first_y) / (last_y - first_y), x)
        for x, y in ordered
    ]
    distance, knee_x = max(below, key=lambda entry: entry[0])
    return knee_x if distance > 0 else None


def table(rows: Sequence[SimulatedRow]) -> list[CsvRow]:
    """Return one row per point, and per class if there are several: means with their intervals."""
    return [line for row in rows for line in _table_rows(row)]


def _table_rows(row: SimulatedRow) -> Iterator[CsvRow]:
    figures = row.figures
    groups: dict[str, GroupFigures[Interval]] = {"all": figures.overall}
    if len(figures.classes) > 1:
        groups |= figures.classes
    groups |= {f"devices of {name}": group for name, group in figures.kinds.items()}
    for name, group in groups.items():
        cells: dict[str, Interval | None] = {metric: getattr(group, metric) for metric in RATES}
        for metric in DISTRIBUTIONS:
            percentiles = getattr(group, metric)
            cells |= {
                f"{metric}_{part}": percentiles and getattr(percentiles, part)
                for part in ("mean", "p95")
            }
        yield {**point_of(row), "class": name, **interval_cells(cells | latency_values(group))}


def latency_values(group: ResponseLatencies[Interval] | None) -> dict[str, Interval | None]:
    """Return mean and percentiles of a group's latencies by the names of their columns."""
    values: dict[str, Interval | None] = {}
    for metric in structs.fields(ResponseLatencies):
        percentiles = getattr(group, metric.name, None)
        for part in structs.fields(Percentiles):
            values[f"{metric.name}_{part.name}"] = getattr(percentiles, part.name, None)
    return values


def interval_cells(values: Mapping[str, Interval | None]) -> dict[str, float | None]:
    """Return three cells for every estimate: its mean, and the ends of its interval."""
    cells: dict[str, float | None] = {}
    for name, value in values.items():
        cells[name] = value.mean if value else None
        cells[f"{name}_low"] = value.low if value else None
        cells[f"{name}_high"] = value.high if value else None
    return cells
