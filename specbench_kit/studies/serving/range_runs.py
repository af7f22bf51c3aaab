"""Simulations at the ends of what derived times may be, beside those of a grid."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.ranges import corners
from specbench_kit.serving.metrics import ServingMetrics, compute_metrics
from specbench_kit.serving.options import Objective
from specbench_kit.serving.parallel import map_in_order, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings

FIGURES = ("throughput", "violation_rate")
"""The figures whose range is told."""


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
