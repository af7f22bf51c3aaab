"""Simulations of every point of a grid with every seed, and their summary."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from specbench_kit.core.plain_text import csv_text
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.serving_rows import AXES, look_up, mean_of
from specbench_kit.serving.metrics import ServingMetrics, compute_metrics
from specbench_kit.serving.options import Objective
from specbench_kit.serving.parallel import Workers, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.seeds import estimate, over_seeds
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings

RATES = (
    "violation_rate", "starved_rate", "deadline_miss_rate", "slow_round_rate", "throughput", "goodput",
    "acceptance_length", "submitted_per_verify",
)  # fmt: skip
"""Metrics of the CSV that are single numbers."""
DISTRIBUTIONS = ("speed", "queue_s", "verify_s", "interference")
"""Metrics of the CSV that have a mean and a 95th percentile."""
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "response_s")
"""Metrics of the CSV that have a mean and three percentiles."""
KNEE_RISE = 0.05
"""Least rise of the violation rate over the range for which a knee is looked for."""


@dataclass(frozen=True, slots=True)
class GridRow:
    """One point: its figures over all seeds, and those of each seed."""

    point: GridPoint
    figures: JsonObject
    by_seed: Sequence[JsonObject]

    @property
    def key(self) -> tuple[object, ...]:
        """Values on the axes, without the series."""
        return tuple(self.point.coordinates().values())


def simulate_grid(
    settings: ServingSettings,
    builder: ScenarioBuilder,
    workers: Workers,
    keeps_result: Callable[[GridPoint, int], bool],
    sink: Callable[[GridPoint, int, SimulationResult], None],
    report: CountCallback,
) -> list[GridRow]:
    """Return one row per point; `sink` gets the results of the points and seeds that `keeps_result` selects."""
    points = settings.points()
    runs = [(point, seed) for point in points for seed in range(settings.seed, settings.seed + settings.seeds)]
    scenarios = {point: builder.scenario(point) for point in points}
    measure = partial(_measure, settings.objective)
    work = [(scenarios[point], seed, partial(measure, keeps_result(point, seed))) for point, seed in runs]
    metrics: dict[GridPoint, list[JsonObject]] = {point: [] for point in points}
    report(0, len(runs))
    # A result leaves its process only if it is kept: event logs are large, metrics small. A study that keeps results
    # simulates all of its points again when it is resumed.
    kind = None if any(keeps_result(*run) for run in runs) else tuple[ServingMetrics, None]
    outcomes: Iterator[tuple[ServingMetrics, SimulationResult | None]]
    outcomes = workers.map(simulate_and_measure, work, kind)
    for done, ((point, seed), (of_seed, result)) in enumerate(zip(runs, outcomes, strict=True), 1):
        metrics[point].append(dict(of_seed))
        if result is not None:
            sink(point, seed, result)
        report(done, len(runs))
    return [GridRow(point, over_seeds(by_seed), by_seed) for point, by_seed in metrics.items()]


def _measure(
    objective: Objective, keeps_result: bool, scenario: Scenario, result: SimulationResult
) -> tuple[ServingMetrics, SimulationResult | None]:
    return compute_metrics(scenario, result, objective), result if keeps_result else None


def summarise(rows: Sequence[GridRow]) -> JsonObject:
    """Return the content of `summary.json`."""
    flat = [{"series": row.point.series.label, **row.point.coordinates(), "figures": row.figures} for row in rows]
    return {
        "axes": {axis: list(dict.fromkeys(row[axis] for row in flat)) for axis in AXES},
        "rows": flat,
        "against_first": _against_first(rows),
        "knees": _knees(flat),
        "guards": guards(flat, "figures.overall.violation_rate", smaller_is_better=True),
    }


def _against_first(rows: Sequence[GridRow]) -> list[JsonObject]:
    """Return every other series compared to the first at the same point, seed by seed."""
    first = {row.key: row for row in rows if row.point.series == rows[0].point.series}
    compared: list[JsonObject] = []
    for row in rows:
        if row.point.series == rows[0].point.series or row.key not in first:
            continue
        # Equal seeds have the same workload, so their differences scatter less than the figures themselves.
        pairs = [
            (own["overall"], reference["overall"])
            for own, reference in zip(row.by_seed, first[row.key].by_seed, strict=True)
        ]
        ratios = [own["throughput"] / reference["throughput"] for own, reference in pairs if reference["throughput"]]
        rates = [(own["violation_rate"], reference["violation_rate"]) for own, reference in pairs]
        differences = [own - reference for own, reference in rates if own is not None and reference is not None]
        compared.append(
            {
                "series": row.point.series.label,
                "against": rows[0].point.series.label,
                **row.point.coordinates(),
                "throughput_ratio": estimate(ratios).describe() if ratios else None,
                "violation_difference": estimate(differences).describe() if differences else None,
            }
        )
    return compared


def guards(rows: Sequence[JsonObject], metric: str, *, smaller_is_better: bool) -> list[JsonObject]:
    """Return, for each wrong estimator, the smallest guard time with which a metric is as good as with the exact one.

    The exact one is taken with its own smallest guard time. As good means within its interval over the seeds.
    """
    fixed = ("series", "devices", "slo", "slo_scale")
    smallest: list[JsonObject] = []
    for point in dict.fromkeys(tuple(row.get(name) for name in fixed) for row in rows):
        group = [row for row in rows if tuple(row.get(n) for n in fixed) == point and row["guard_s"] is not None]
        errors = {id(row): (row["estimator_factor"], row["estimator_noise"]) for row in group}
        exact_rows = [row for row in group if errors[id(row)] == (1, 0)]
        if not exact_rows or len({row["guard_s"] for row in group}) < 2:
            continue
        exact = min(exact_rows, key=lambda row: row["guard_s"])
        for error in dict.fromkeys(error for error in errors.values() if error != (1, 0)):
            candidates = [row for row in group if errors[id(row)] == error]
            enough = [row["guard_s"] for row in candidates if _as_good(row, exact, metric, smaller_is_better)]
            smallest.append(
                {
                    **dict(zip(fixed, point, strict=True)),
                    "estimator_factor": error[0],
                    "estimator_noise": error[1],
                    "guard_s": min(enough, default=None),
                }
            )
    return smallest


def _as_good(row: JsonObject, exact: JsonObject, metric: str, smaller_is_better: bool) -> bool:
    own = look_up(row, metric)
    reference = look_up(exact, metric)
    if not own or not reference:
        return False
    bound = reference["high" if smaller_is_better else "low"]
    bound = reference["mean"] if bound is None else bound
    return bool(own["mean"] <= bound if smaller_is_better else own["mean"] >= bound)


def _knees(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the number of devices at which the violation rate of each line over devices begins to rise."""
    names = ("series", *AXES[1:])
    lines: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for row in rows:
        rate = mean_of(row, "figures.overall.violation_rate")
        if rate is not None:
            lines.setdefault(tuple(row[name] for name in names), []).append((row["devices"], rate))
    knees = ((line, knee(points)) for line, points in lines.items())
    return [
        {**dict(zip(names, line, strict=True)), "devices": devices} for line, devices in knees if devices is not None
    ]


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """Return x of the point farthest below the chord from the first to the last, on scales of equal length.

    None if there are fewer than three points, or if y rises by less than `KNEE_RISE`.
    """
    ordered = sorted(points)
    if len(ordered) < 3 or ordered[-1][1] - ordered[0][1] < KNEE_RISE:
        return None
    (first_x, first_y), (last_x, last_y) = ordered[0], ordered[-1]
    below = [((x - first_x) / (last_x - first_x) - (y - first_y) / (last_y - first_y), x) for x, y in ordered]
    distance, knee_x = max(below, key=lambda entry: entry[0])
    return knee_x if distance > 0 else None


def to_csv(rows: Sequence[JsonObject]) -> str:
    """Return one line per point, and per class if there are several: means with their intervals."""
    return csv_text([line for row in rows for line in _csv_lines(row)])


def _csv_lines(row: JsonObject) -> Iterator[JsonObject]:
    figures = row["figures"]
    groups = {"all": figures["overall"]}
    if len(figures["classes"]) > 1:
        groups |= figures["classes"]
    groups |= {f"devices of {name}": group for name, group in figures.get("kinds", {}).items()}
    for name, group in groups.items():
        line = {"series": row["series"], **{axis: row[axis] for axis in AXES}, "class": name}
        values = {metric: group[metric] for metric in RATES}
        for metric in DISTRIBUTIONS:
            for statistic in ("mean", "p95"):
                values[f"{metric}_{statistic}"] = look_up(group, f"{metric}.{statistic}")
        yield line | interval_cells(values | latency_values(group))


def latency_values(group: JsonObject) -> dict[str, Any]:
    """Return mean and percentiles of a group's latencies by the names of their columns."""
    statistics = ("mean", "p50", "p95", "p99")
    return {f"{metric}_{name}": look_up(group, f"{metric}.{name}") for metric in LATENCIES for name in statistics}


def interval_cells(values: JsonObject) -> dict[str, Any]:
    """Return three cells for every estimate: its mean, and the ends of its interval."""
    cells: dict[str, Any] = {}
    for name, value in values.items():
        known = value or {"mean": None, "low": None, "high": None}
        cells |= {name: known["mean"], f"{name}_low": known["low"], f"{name}_high": known["high"]}
    return cells
