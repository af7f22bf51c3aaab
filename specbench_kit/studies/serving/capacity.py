"""How many devices a server can take with a violation rate of epsilon at most (WISP, Eq. 20)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback
from specbench_kit.metrics.serving_rows import AXES
from specbench_kit.serving.metrics import slo_violations
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import map_in_order
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import Simulation
from specbench_kit.serving.steady_state import is_drifting
from specbench_kit.studies.serving.loads import DEVICES, load_of, loaded, unit
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.seeds import estimate
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings
from specbench_kit.studies.serving.simulation_grid import guards

Fields = dict[str, Any]

LOOKS = (0.125, 0.25, 0.5, 1.0, 2.0)
"""Shares of the time after the warm-up at which a run may be stopped; the last is for one that drifts."""
BEYOND = 1.5
"""Times the highest load that was tried: there a search looks once more."""
CONFIDENCE = 0.95
FEWEST_TURNS = 5
"""Responses that every device has to have had on average before a run may be stopped early."""
FEWEST_RESPONSES = 100
FIRST_TRY = 16
HELD = AXES[1:]


@dataclass(frozen=True, slots=True)
class LoadTrial:
    """One load: the violation rate with its interval when the run was stopped, after so many seconds.

    `settled`: the interval lay on one side of epsilon; where it did not up to the end, the rate itself decides. A run
    that still drifts then is not `steady`, and no load is held to be served by it.
    """

    load: float
    rate: float
    low: float
    high: float
    responses: int
    simulated_s: float
    settled: bool
    holds: bool
    steady: bool = True


@dataclass(frozen=True, slots=True)
class SeedCapacity:
    """One seed's capacity and the way to it; `bounded` where even the highest load was served."""

    load: float
    trials: tuple[LoadTrial, ...]
    bounded: bool = False

    @property
    def monotone(self) -> bool:
        """Whether every load that was tried is served up to the first that is not."""
        served = [trial.holds for trial in sorted(self.trials, key=lambda one: one.load)]
        return served == sorted(served, reverse=True)


def search(scenario: Scenario, seed: int, rule: CapacityRule) -> SeedCapacity:
    """Double until the rate is too high, halve the gap, and look beyond it: a rate may fall again with the load."""
    trials: dict[int, LoadTrial] = {}

    def holds(step: int) -> bool:
        if step not in trials:
            trials[step] = attempt(loaded(scenario, step), seed, rule, load_of(scenario, step))
        return trials[step].holds

    def found(step: int, *, bounded: bool = False) -> SeedCapacity:
        return SeedCapacity(load_of(scenario, step), tuple(trials.values()), bounded)

    low, high = 0, min(FIRST_TRY, rule.most)
    while True:
        while holds(high):
            low = high
            if low == rule.most:
                return found(low, bounded=True)
            high = min(2 * high, rule.most)
        while high - low > max(1, rule.resolution * low):
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        beyond = min(ceil(BEYOND * max(trials)), rule.most)
        if not holds(beyond):
            return found(low)
        high = beyond


def attempt(scenario: Scenario, seed: int, rule: CapacityRule, load: float | None = None) -> LoadTrial:
    """Let one simulation run for longer and longer until the rate's interval lies on one side of epsilon.

    The interval has its confidence over all looks together. A run that would be served and drifts goes on for twice
    its time.
    """
    simulation = Simulation(scenario, seed)
    for share in LOOKS:
        seconds = scenario.warmup_s + share * (scenario.duration_s - scenario.warmup_s)
        result = simulation.run(seconds)
        violated, _ = slo_violations(scenario, result, rule.objective)
        turns = len(violated) / scenario.devices
        enough = turns >= FEWEST_TURNS and len(violated) >= FEWEST_RESPONSES
        if not enough and share < 1:
            continue
        rate, low, high = interval(violated, int(turns))
        steady = rate > rule.epsilon or not is_drifting(scenario, result)
        settled = enough and steady and (low > rule.epsilon or high <= rule.epsilon)
        if settled or (share >= 1 and steady):
            break
    if not len(violated):
        raise SkitError(
            f"no response of {scenario.devices} devices is due within {scenario.duration_s:g} s: simulate for longer"
        )
    load, holds = scenario.devices if load is None else load, steady and bool(rate <= rule.epsilon)
    return LoadTrial(load, rate, low, high, len(violated), seconds, settled, holds, steady)


def interval(violated: NDArray[np.bool_], turns: int, looks: int = len(LOOKS)) -> tuple[float, float, float]:
    """The violation rate and its Wilson interval, at 95% over all looks (Bonferroni).

    Responses that are under way together share their fate, so they count for as many independent ones as the spread
    between turns, of one response per device each, lets them.
    """
    if not len(violated):
        return 0.0, 0.0, 1.0
    rate = float(violated.mean())
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / looks / 2)
    effective = _independent(violated, rate, turns)
    centre = (rate + z * z / (2 * effective)) / (1 + z * z / effective)
    half = z / (1 + z * z / effective) * sqrt(rate * (1 - rate) / effective + z * z / (4 * effective * effective))
    return rate, max(0.0, centre - half), min(1.0, centre + half)


def _independent(violated: NDArray[np.bool_], rate: float, turns: int) -> float:
    """As many independent responses as would have the variance between turns; all of them where there is none."""
    count = len(violated)
    if turns < 2:
        return 1.0
    means = np.asarray([part.mean() for part in np.array_split(violated, turns)])
    variance = float(means.var(ddof=1)) / turns
    return float(np.clip(rate * (1 - rate) / variance, turns, count)) if variance else float(count)


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """One series under one SLO: what each seed found, or why nothing can be served."""

    point: GridPoint
    found: Sequence[SeedCapacity]
    refused: str = ""
    unit: str = DEVICES

    def describe(self) -> Fields:
        """As `summary.json` holds it."""
        values = {"series": self.point.series.label, **{name: getattr(self.point, name) for name in HELD}}
        if self.refused:
            refused = {"capacity": estimate([0.0]).describe(), "unit": self.unit, "refused": self.refused, "seeds": []}
            return values | refused
        trials = [trial for one in self.found for trial in one.trials]
        return {
            **values,
            "capacity": estimate([one.load for one in self.found], 0.0).describe(),
            "unit": self.unit,
            "monotone": all(one.monotone for one in self.found),
            "steady": sum(trial.steady for trial in trials) / len(trials),
            "bounded": any(one.bounded for one in self.found),
            "settled": sum(trial.settled for trial in trials) / len(trials),
            "simulated_s": sum(trial.simulated_s for trial in trials),
            "seeds": [{"load": one.load, "trials": [asdict(t) for t in one.trials]} for one in self.found],
        }


def find_all(
    settings: ServingSettings, rule: CapacityRule, builder: ScenarioBuilder, report: CountCallback
) -> list[CapacityRow]:
    """Every series under every SLO and estimator, seed by seed."""
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
    seeds = range(settings.seed, settings.seed + settings.seeds)
    runs = [(point, seed) for point in scenarios for seed in seeds]
    found: Mapping[GridPoint, list[SeedCapacity]] = {point: [] for point in points}
    report(0, len(runs))
    searches = map_in_order(search, [(scenarios[point], seed, rule) for point, seed in runs], settings.jobs)
    for done, ((point, _), one) in enumerate(zip(runs, searches, strict=True), 1):
        found[point].append(one)
        report(done, len(runs))
    units = {point: unit(scenario) for point, scenario in scenarios.items()}
    return [CapacityRow(point, found[point], refused.get(point, ""), units.get(point, DEVICES)) for point in points]


def summarise(rows: Sequence[CapacityRow], rule: CapacityRule) -> Fields:
    """The content of `summary.json`."""
    described = [row.describe() for row in rows]
    return {
        "rule": asdict(rule),
        "axes": {axis: list(dict.fromkeys(row[axis] for row in described)) for axis in HELD},
        "rows": described,
        "guards": guards(described, "capacity", smaller_is_better=False),
    }
