"""Simulations and searches at the ends of what derived times may be, beside those of a grid."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.ranges import corners
from specbench_kit.serving.metrics import ServingMetrics, compute_metrics
from specbench_kit.serving.options import CapacityRule, Objective
from specbench_kit.serving.parallel import map_in_order, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.serving.capacity import CapacityRow, find_capacity
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings

FIGURES = ("throughput", "violation_rate")
"""The figures whose range is told."""
SEARCHED_SERIES, SEARCHED_SETTINGS = 2, 4
"""The best series of so many settings of a search for capacity are searched at the ends as well, and no others."""
COARSE = 0.03
"""Relative precision of a capacity at an end, which takes fewer simulations than a finer one."""


def simulate_ranges(settings: ServingSettings, builder: ScenarioBuilder, report: CountCallback) -> list[JsonObject]:
    """Return the range of every point whose deployment has derived times, by the first seed; empty if none has.

    The slowest device may be unable to keep the promise at all: such an end serves nothing.
    """
    work: list[tuple[GridPoint, str, Scenario | None]] = []
    for point in settings.points():
        scenario = builder.scenario(point)
        for end, deployment in corners(scenario.deployment):
            try:
                work.append((point, end, replace(scenario, deployment=deployment)))
            except SkitError:
                work.append((point, end, None))
    runs = [(scenario, settings.seed, partial(_measure, settings.objective)) for *_, scenario in work if scenario]
    outcomes = map_in_order(simulate_and_measure, runs, settings.jobs)
    ends: dict[GridPoint, dict[str, JsonObject]] = {}
    for done, (point, end, attainable) in enumerate(work, 1):
        figures = dict(next(outcomes)["overall"]) if attainable else {"throughput": 0.0, "violation_rate": 1.0}
        ends.setdefault(point, {})[end] = {name: figures[name] for name in FIGURES}
        report(done, len(work))
    return [_row(point, of_point, ends) for point, of_point in ends.items()]


def search_ranges(
    settings: ServingSettings,
    rule: CapacityRule,
    builder: ScenarioBuilder,
    rows: Sequence[CapacityRow],
    report: CountCallback,
) -> list[JsonObject]:
    """Return the range of the best series' capacities in the first settings of a search; empty if times have none.

    Every end is searched with the first seed. The slowest device may be unable to keep the promise at all: such an end
    serves nothing.
    """
    work: list[tuple[CapacityRow, str, Scenario | None]] = []
    for row in _best(rows):
        scenario = builder.scenario(row.point)
        for end, deployment in corners(scenario.deployment):
            try:
                work.append((row, end, replace(scenario, deployment=deployment)))
            except SkitError:
                work.append((row, end, None))
    coarse = replace(rule, resolution=max(rule.resolution, COARSE))
    searches = [(scenario, settings.seed, coarse) for *_, scenario in work if scenario]
    capacities = map_in_order(find_capacity, searches, settings.jobs)
    ends: dict[GridPoint, dict[str, float]] = {}
    for done, (row, end, attainable) in enumerate(work, 1):
        ends.setdefault(row.point, {})[end] = next(capacities).load if attainable else 0.0
        report(done, len(work))
    return [_capacity_row(row, ends) for row in _best(rows) if row.point in ends]


def _best(rows: Sequence[CapacityRow]) -> list[CapacityRow]:
    """Return the series with the highest capacities in each of the first settings, the best one first."""
    settings: dict[str, list[CapacityRow]] = {}
    for row in rows:
        if row.by_seed:
            settings.setdefault(_setting(row.point), []).append(row)
    first = list(settings.values())[:SEARCHED_SETTINGS]
    return [row for alike in first for row in sorted(alike, key=lambda row: -row.mean)[:SEARCHED_SERIES]]


def _setting(point: GridPoint) -> str:
    return repr(point.coordinates())


def _capacity_row(row: CapacityRow, ends: dict[GridPoint, dict[str, float]]) -> JsonObject:
    """Return a series' capacity at every end, its range, and what share of the best series' it is there."""
    own, point = ends[row.point], row.point
    best = next(other for other in ends if _setting(other) == _setting(point))
    ratios = [own[end] / ends[best][end] for end in own if best != point and ends[best].get(end)]
    return {
        "series": point.series.label,
        **{axis: value for axis, value in point.coordinates().items() if axis != "devices"},
        "unit": row.unit,
        "mean": row.mean,
        "ends": own,
        "capacity": [min(own.values()), max(own.values())],
        "against": best.series.label if ratios else None,
        "capacity_ratio": _range(ratios),
    }


def _measure(objective: Objective, scenario: Scenario, result: SimulationResult) -> ServingMetrics:
    return compute_metrics(scenario, result, objective)


def _row(point: GridPoint, own: JsonObject, ends: dict[GridPoint, dict[str, JsonObject]]) -> JsonObject:
    """Return a point's figures at every end, their range, and its throughput over that of the first series there."""
    first = next(other for other in ends if other.coordinates() == point.coordinates())
    ratios = [
        own[end]["throughput"] / ends[first][end]["throughput"]
        for end in own
        if first.series != point.series and end in ends[first] and ends[first][end]["throughput"]
    ]
    return {
        "series": point.series.label,
        **point.coordinates(),
        "ends": own,
        **{name: _range([figures[name] for figures in own.values()]) for name in FIGURES},
        "against": first.series.label if ratios else None,
        "throughput_ratio": _range(ratios),
    }


def _range(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return [min(known), max(known)] if known else None
