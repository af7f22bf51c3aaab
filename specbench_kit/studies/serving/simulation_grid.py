"""Every point of a grid, with every seed, and what they come to."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from specbench_kit.core.csv_text import csv_text
from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.serving_rows import AXES, look_up, mean_of
from specbench_kit.serving.metrics import ServingMetrics, compute_metrics
from specbench_kit.serving.options import Objective
from specbench_kit.serving.parallel import map_in_order, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.seeds import estimate, over_seeds
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings

Fields = dict[str, Any]
Observed = tuple[ServingMetrics, SimulationResult | None]
Sink = Callable[[GridPoint, int, SimulationResult], None]

FLAT = (
    "violation_rate", "starved_rate", "deadline_miss_rate", "slow_round_rate", "throughput", "goodput",
    "acceptance_length", "submitted_per_verify",
)  # fmt: skip
SPREAD = ("speed", "ttft_s", "tpot_s", "queue_s", "verify_s", "interference")
KNEE_RISE = 0.05
"""By which the violation rate has to rise over the range for a knee to be looked for."""


@dataclass(frozen=True, slots=True)
class GridRow:
    """One point: its figures over seeds, and those of each seed."""

    point: GridPoint
    figures: Fields
    by_seed: Sequence[Fields]

    @property
    def key(self) -> tuple[Any, ...]:
        """Its place on the axes, whatever the series."""
        return tuple(self.point.values().values())


def simulate_grid(
    settings: ServingSettings,
    builder: ScenarioBuilder,
    keeps: Callable[[GridPoint, int], bool],
    sink: Sink,
    report: CountCallback,
) -> list[GridRow]:
    """A row per point; where `keeps` says so of a point and a seed, `sink` is given all that happened."""
    points = settings.points()
    seeds = range(settings.seed, settings.seed + settings.seeds)
    runs = [(point, seed) for point in points for seed in seeds]
    scenarios = {point: builder.scenario(point) for point in points}
    work = [(scenarios[one], seed, partial(_observe, settings.objective, keeps(one, seed))) for one, seed in runs]
    found: dict[GridPoint, list[Fields]] = {point: [] for point in points}
    report(0, len(runs))
    for done, ((point, seed), observed) in enumerate(zip(runs, _observed(work, settings.jobs), strict=True), 1):
        seen, result = observed
        found[point].append(dict(seen))
        if result is not None:
            sink(point, seed, result)
        report(done, len(runs))
    return [GridRow(point, over_seeds(one), one) for point, one in found.items()]


def _observed(work: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Observed]:
    return map_in_order(simulate_and_measure, work, jobs)


def _observe(objective: Objective, keeps: bool, scenario: Scenario, result: SimulationResult) -> Observed:
    return compute_metrics(scenario, result, objective), result if keeps else None


def summarise(rows: Sequence[GridRow]) -> Fields:
    """The content of `summary.json`."""
    flat = [{"series": row.point.series.label, **row.point.values(), "figures": row.figures} for row in rows]
    return {
        "axes": {axis: list(dict.fromkeys(row[axis] for row in flat)) for axis in AXES},
        "rows": flat,
        "against_first": _against_first(rows),
        "knees": _knees(flat),
        "guards": guards(flat, "figures.overall.violation_rate", smaller_is_better=True),
    }


def guards(rows: Sequence[Fields], metric: str, *, smaller_is_better: bool) -> list[Fields]:
    """For each wrong estimator, the smallest guard time with which a metric is as good as with the right one.

    The right one is taken with its own smallest guard time; seeds have to overlap, not only means.
    """
    held = ("series", "devices", "slo", "slo_scale")
    found: list[Fields] = []
    for place in dict.fromkeys(tuple(row.get(name) for name in held) for row in rows):
        mine = [r for r in rows if tuple(r.get(n) for n in held) == place and r["guard_s"] is not None]
        right = min((r for r in mine if _is_right(r)), key=lambda row: row["guard_s"], default=None)
        wrong = dict.fromkeys((r["estimator_factor"], r["estimator_noise"]) for r in mine if not _is_right(r))
        if right is None or len({row["guard_s"] for row in mine}) < 2:
            continue
        for factor, noise in wrong:
            tried = [r for r in mine if (r["estimator_factor"], r["estimator_noise"]) == (factor, noise)]
            enough = [r["guard_s"] for r in tried if _as_good(r, right, metric, smaller_is_better)]
            error = {"estimator_factor": factor, "estimator_noise": noise}
            found.append({**dict(zip(held, place, strict=True)), **error, "guard_s": min(enough, default=None)})
    return found


def _is_right(row: Fields) -> bool:
    return bool(row["estimator_factor"] == 1 and row["estimator_noise"] == 0)


def _as_good(row: Fields, right: Fields, metric: str, smaller_is_better: bool) -> bool:
    ours, theirs = look_up(row, metric), look_up(right, metric)
    if not ours or not theirs:
        return False
    if smaller_is_better:
        bound = theirs["high"] if theirs["high"] is not None else theirs["mean"]
        return bool(ours["mean"] <= bound)
    bound = theirs["low"] if theirs["low"] is not None else theirs["mean"]
    return bool(ours["mean"] >= bound)


def _against_first(rows: Sequence[GridRow]) -> list[Fields]:
    """Every other series against the first at the same place, seed by seed."""
    first = {row.key: row for row in rows if row.point.series == rows[0].point.series}
    return [
        {
            "series": row.point.series.label,
            "against": rows[0].point.series.label,
            **row.point.values(),
            **_paired(row, first[row.key]),
        }
        for row in rows
        if row.point.series != rows[0].point.series and row.key in first
    ]


def _paired(row: GridRow, first: GridRow) -> Fields:
    pairs = [(one["overall"], other["overall"]) for one, other in zip(row.by_seed, first.by_seed, strict=True)]
    ratios = [ours["throughput"] / theirs["throughput"] for ours, theirs in pairs if theirs["throughput"]]
    rates = [(ours["violation_rate"], theirs["violation_rate"]) for ours, theirs in pairs]
    differences = [ours - theirs for ours, theirs in rates if ours is not None and theirs is not None]
    return {
        "throughput_ratio": estimate(ratios).describe() if ratios else None,
        "violation_difference": estimate(differences).describe() if differences else None,
    }


def _knees(rows: Sequence[Fields]) -> list[Fields]:
    """Of each line over the number of devices, where its violation rate begins to rise."""
    lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in rows:
        rate = mean_of(row, "figures.overall.violation_rate")
        if rate is not None:
            held = row["series"], *(row[axis] for axis in AXES[1:])
            lines.setdefault(held, []).append((row["devices"], rate))
    names = ("series", *AXES[1:])
    found = ((held, knee(points)) for held, points in lines.items())
    return [{**dict(zip(names, held, strict=True)), "devices": at} for held, at in found if at is not None]


def knee(points: Sequence[tuple[float, float]]) -> float | None:
    """The point that lies farthest below the chord from the first to the last, on scales of the same length."""
    ordered = sorted(points)
    if len(ordered) < 3 or ordered[-1][1] - ordered[0][1] < KNEE_RISE:
        return None
    (first_x, first_y), (last_x, last_y) = ordered[0], ordered[-1]
    below = [((x - first_x) / (last_x - first_x) - (y - first_y) / (last_y - first_y), x) for x, y in ordered]
    most, at = max(below, key=lambda one: one[0])
    return at if most > 0 else None


def to_csv(rows: Sequence[Fields]) -> str:
    """A line per point, and per class where there are several: means with their intervals."""
    return csv_text([line for row in rows for line in _lines(row)])


def _lines(row: Fields) -> Iterator[Fields]:
    groups = {"all": row["figures"]["overall"]}
    if len(row["figures"]["classes"]) > 1:
        groups |= row["figures"]["classes"]
    groups |= {f"devices of {name}": group for name, group in row["figures"].get("kinds", {}).items()}
    for name, group in groups.items():
        place = {"series": row["series"], **{axis: row[axis] for axis in AXES}, "class": name}
        plain = [cell for metric in FLAT for cell in _cells(metric, group[metric])]
        spread = [
            cell
            for metric in SPREAD
            for at in ("mean", "p95")
            for cell in _cells(f"{metric}_{at}", look_up(group, f"{metric}.{at}"))
        ]
        yield {**place, **dict(plain), **dict(spread)}


def _cells(name: str, found: Fields | None) -> list[tuple[str, float | None]]:
    found = found or {"mean": None, "low": None, "high": None}
    return [(name, found["mean"]), (f"{name}_low", found["low"]), (f"{name}_high", found["high"])]
