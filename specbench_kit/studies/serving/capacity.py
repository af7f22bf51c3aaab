"""The search for a server's capacity: the most devices with a violation rate of at most epsilon
(WISP, Eq. 20).

Where requests arrive whether or not others are done, it is the highest rate of arrivals instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, sqrt

import numpy as np
from msgspec import convert, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import CsvRow
from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.statistics import student
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.figures import (
    AXES,
    CapacityRange,
    Interval,
    ResponseLatencies,
    SearchedRow,
    SeedSearch,
    ServerShare,
    TriedLoad,
)
from specbench_kit.serving.metrics import ALL, due_lateness, latencies_by_class
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_metrics import is_drifting, pool_metrics
from specbench_kit.serving.simulation import Simulation
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.seeds import estimate, joined
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings
from specbench_kit.studies.serving.simulation_grid import (
    axes_of,
    guards,
    interval_cells,
    latency_values,
)
from specbench_kit.studies.serving.summary import CapacitySummary

DEVICES = "devices"
RATE = "requests/s"
RATE_STEP = 0.01
"""Requests per second in one step of a search over rates."""


def load_unit(scenario: Scenario) -> str:
    """Return the unit of a scenario's capacity."""
    return RATE if scenario.arrivals.is_open else DEVICES


def at_load(scenario: Scenario, step: int) -> Scenario:
    """Return the scenario at a step of the search."""
    if not scenario.arrivals.is_open:
        return replace(scenario, devices=step)
    arrivals = scenario.arrivals.at_rate(step * RATE_STEP)
    return replace(scenario, devices=arrivals.devices_for(scenario.duration_s), arrivals=arrivals)


def load_of(scenario: Scenario, step: int) -> float:
    """Return the load of a step in the scenario's unit."""
    return round(step * RATE_STEP, 6) if scenario.arrivals.is_open else step


LOOKS = (0.25, 0.5, 1.0, 2.0)
"""Shares of the time after the warm-up at which a run may be stopped; the last is for a run that
drifts.
"""
MOST_BATCHES = 8
"""Batches of which the variance is taken: few, so that each is much longer than what one response
does to the next.
"""
MOST_CORRELATED = 0.8
"""Largest correlation between batches that is reckoned with."""
BEYOND = 1.5
"""Multiple of the highest load so far at which a search checks once more."""
CONFIDENCE = 0.95
FEWEST_TURNS = 5
"""How many responses long the time has to be before a run may be stopped early."""
FEWEST_RESPONSES = 100
FIRST_TRY = 16
FIXED_AXES = AXES[1:]
"""All axes but the number of devices, which is searched for."""


def find_capacity(scenario: Scenario, seed: int, rule: CapacityRule) -> SeedSearch:
    """Return the highest load that is served: doubled until it is not, then found by bisection.

    Beyond that load one more is tried, since a violation rate may fall again: fuller batches
    amortise more.
    """
    trials: dict[int, TriedLoad] = {}

    def holds(step: int) -> bool:
        trials[step] = try_load(at_load(scenario, step), seed, rule, load_of(scenario, step))
        return trials[step].holds

    step = _highest_served(holds, rule)
    bounded = step == rule.most
    return SeedSearch(load_of(scenario, step), list(trials.values()), bounded)


def steps_tried(capacity: int, rule: CapacityRule) -> list[int]:
    """Return the steps that a search tries which finds this capacity."""
    tried: list[int] = []

    def holds(step: int) -> bool:
        tried.append(step)
        return step <= capacity

    _highest_served(holds, rule)
    return tried


def _highest_served(holds: Callable[[int], bool], rule: CapacityRule) -> int:
    """Return the highest step that is served, each of which is tried once at most."""
    known = cache(holds)
    highest_tried = low = 0
    high = min(FIRST_TRY, rule.most)
    while True:
        while known(high):
            low = high
            if low == rule.most:
                return low
            high = min(2 * high, rule.most)
        highest_tried = max(highest_tried, high)
        while high - low > max(1, rule.resolution * low):
            middle = (low + high) // 2
            low, high = (middle, high) if known(middle) else (low, middle)
        beyond = min(ceil(BEYOND * highest_tried), rule.most)
        if not known(beyond):
            return low
        high = beyond


def try_load(
    scenario: Scenario, seed: int, rule: CapacityRule, load: float | None = None
) -> TriedLoad:
    """Simulate for longer and longer until the interval of the violation rate lies on one side of
    epsilon.

    The interval has its confidence over all looks together: each look may err with the share of `1
    - CONFIDENCE` that the time since the look before it has in the whole time. A run that seems
    served but drifts goes on for twice its time.
    """
    simulation = Simulation(scenario, seed)
    for before, share in zip((0.0, *LOOKS), LOOKS, strict=False):
        seconds = scenario.warmup_s + share * (scenario.duration_s - scenario.warmup_s)
        result = simulation.run(seconds)
        lateness, duration_s = due_lateness(scenario, result, rule.objective)
        turns = (seconds - scenario.warmup_s) / duration_s if duration_s else 0.0
        enough = turns >= FEWEST_TURNS and len(lateness) >= FEWEST_RESPONSES
        if not enough and share < 1:
            continue
        alpha = (1 - CONFIDENCE) * (share - before) / LOOKS[-1]
        rate, low, high = violation_interval(lateness, turns, alpha)
        steady = rate > rule.epsilon or not is_drifting(scenario, result)
        settled = enough and steady and (low > rule.epsilon or high <= rule.epsilon)
        if settled or (share >= 1 and steady):
            break
    if not len(lateness):
        raise SkitError(
            f"no response of {scenario.devices} devices is due within {scenario.duration_s:g} s: simulate for longer, "
            f"with --duration {2 * scenario.duration_s:g}"
        )
    load = scenario.devices if load is None else load
    holds = steady and bool(rate <= rule.epsilon)
    return TriedLoad(
        load,
        rate,
        low,
        high,
        len(lateness),
        seconds,
        settled,
        holds,
        steady,
        latencies_by_class(scenario, result),
        pool_metrics(scenario, result),
    )


def violation_interval(
    lateness: Floats, turns: float, alpha: float = 1 - CONFIDENCE
) -> tuple[float, float, float]:
    """Return the violation rate and its interval, which misses the true rate with a probability of
    `alpha` at most.

    `lateness` is the time of each response over the time that it may take, in order; `turns` is how many responses
    long the time was in which they fell due. Responses that are under way at the same time share their fate, so that
    they count for as many independent ones as would have the variance of the mean, which batch means estimate. It is
    Wilson's interval with Student's t in place of the normal distribution: few batches know their variance badly.
    """
    count = len(lateness)
    if count < 2:
        return float((lateness > 1).mean()) if count else 0.0, 0.0, 1.0
    violated = (lateness > 1).astype(np.float64)
    rate = float(violated.mean())
    batches = int(np.clip(turns, 2, min(MOST_BATCHES, count)))
    if rate in (0, 1) and np.isfinite(lateness).all():
        # Rates of batches do not differ, and the lateness itself shows how far one response is like
        # the next.
        effective = _effective(lateness, batches)
    else:
        effective = _effective(violated, batches)
    z = student(1 - alpha, batches - 1)
    centre = (rate + z * z / (2 * effective)) / (1 + z * z / effective)
    half = (
        z
        / (1 + z * z / effective)
        * sqrt(rate * (1 - rate) / effective + z * z / (4 * effective * effective))
    )
    # Where nothing or everything is late, rounding alone keeps that end of the interval from 0 or
    # 1.
    return (
        rate,
        max(0.0, centre - half) if rate else 0.0,
        min(1.0, centre + half) if rate < 1 else 1.0,
    )


def _effective(values: Floats, batches: int) -> float:
    """Return how many independent values would have the variance of the mean of these ones.

    The variance is that of batch means, and larger where neighbouring batches are alike: as of a
    process in which each batch mean remembers the one before it (an autoregressive process of order
    1).
    """
    count = len(values)
    deviations = (
        np.asarray([batch.mean() for batch in np.array_split(values, batches)]) - values.mean()
    )
    squares = float((deviations**2).sum())
    if not squares:
        return float(count)
    # The estimate of the correlation is too low by about one over the number of batches.
    correlation = float((deviations[1:] * deviations[:-1]).sum()) / squares + 1 / batches
    correlation = float(np.clip(correlation, 0, MOST_CORRELATED))
    variance = squares / (batches - 1) / batches * (1 + correlation) / (1 - correlation)
    return float(np.clip(values.var() / variance, 1, count))


def searched_row(
    point: GridPoint, by_seed: Sequence[SeedSearch], unit: str = DEVICES, refused: str = ""
) -> SearchedRow:
    """Return the capacity of one series under one SLO over the seeds, or why nothing can be
    served.
    """
    fixed = point.without_load
    if refused:
        return SearchedRow(**fixed, capacity=estimate([0.0]), unit=unit, refused=refused, seeds=[])
    trials = [trial for capacity in by_seed for trial in capacity.trials]
    served = [capacity.at_capacity for capacity in by_seed if capacity.at_capacity]
    latencies: dict[str, ResponseLatencies[Interval]] | None = None
    pool: dict[str, ServerShare[Interval]] = {}
    if served:
        by_class = joined([to_builtins(trial.latencies) for trial in served])
        latencies = convert(by_class, dict[str, ResponseLatencies[Interval]])
        pool = convert(
            joined([to_builtins(trial.pool) for trial in served]), dict[str, ServerShare[Interval]]
        )
    return SearchedRow(
        **fixed,
        capacity=estimate([capacity.load for capacity in by_seed], 0.0),
        unit=unit,
        response_s=latencies[ALL].response_s if latencies else None,
        latencies=latencies,
        pool=pool,
        monotone=all(capacity.monotone for capacity in by_seed),
        steady=sum(trial.steady for trial in trials) / len(trials),
        bounded=any(capacity.bounded for capacity in by_seed),
        settled=sum(trial.settled for trial in trials) / len(trials),
        simulated_s=sum(trial.simulated_s for trial in trials),
        seeds=list(by_seed),
    )


def find_capacities(
    settings: ServingSettings,
    rule: CapacityRule,
    builder: ScenarioBuilder,
    workers: Workers,
    report: CountCallback,
) -> list[SearchedRow]:
    """Return the capacity of every series under every SLO and estimator, in the order of the
    settings' points.
    """
    points = settings.points()
    scenarios: dict[GridPoint, Scenario] = {}
    refused: dict[GridPoint, str] = {}
    for point in points:
        try:
            scenarios[point] = builder.scenario(point)
        except SkitError as error:
            refused[point] = str(error)
    if not scenarios:
        raise SkitError(next(iter(refused.values())))
    for scenario in scenarios.values():
        scenario.check_due(rule.objective)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    runs = [(point, seed) for point in scenarios for seed in seeds]
    capacities: Mapping[GridPoint, list[SeedSearch]] = {point: [] for point in points}
    report(0, len(runs))
    searches = workers.map(
        find_capacity, [(scenarios[point], seed, rule) for point, seed in runs], SeedSearch
    )
    for done, ((point, _), capacity) in enumerate(zip(runs, searches, strict=True), 1):
        capacities[point].append(capacity)
        report(done, len(runs))
    units = {point: load_unit(scenario) for point, scenario in scenarios.items()}
    return [
        searched_row(point, capacities[point], units.get(point, DEVICES), refused.get(point, ""))
        for point in points
    ]


def table(rows: Sequence[SearchedRow]) -> list[CsvRow]:
    """Return one row per row of the summary, and per class if there are several: the capacity, then
    its latencies.
    """
    lines: list[CsvRow] = []
    for row in rows:
        place = {"series": row.series, **{axis: row.at(axis) for axis in FIXED_AXES}}
        groups: Mapping[str, ResponseLatencies[Interval] | None] = row.latencies or {ALL: None}
        for name, group in groups.items():
            values = {"capacity": row.capacity, **latency_values(group)}
            lines.append({**place, "class": name, "unit": row.unit, **interval_cells(values)})
    return lines


def summarise(
    rows: Sequence[SearchedRow], rule: CapacityRule, ranges: Sequence[CapacityRange] = ()
) -> CapacitySummary:
    """Return the summary without published numbers."""
    return CapacitySummary(
        rule=rule,
        axes=axes_of(rows, FIXED_AXES),
        rows=list(rows),
        guards=guards(rows, lambda row: row.capacity, smaller_is_better=False),
        ranges=list(ranges),
    )
