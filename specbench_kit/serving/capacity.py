"""How many devices a server can take with a violation rate of epsilon at most (WISP, Eq. 20)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.errors import SkitError
from specbench_kit.metrics.serving_rows import AXES
from specbench_kit.serving.building import Builder
from specbench_kit.serving.metrics import violations
from specbench_kit.serving.options import Rule
from specbench_kit.serving.parallel import in_turn
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.seeds import estimate
from specbench_kit.serving.settings import Point, Settings
from specbench_kit.serving.simulation import Simulation
from specbench_kit.serving.sweep import guards

Fields = dict[str, Any]

LOOKS = (0.125, 0.25, 0.5, 1.0)
"""Shares of the time after the warm-up at which a run may be stopped."""
CONFIDENCE = 0.95
FEWEST_TURNS = 5
"""Responses that every device has to have had on average before a run may be stopped early."""
FEWEST_RESPONSES = 100
FIRST_TRY = 16
HELD = AXES[1:]


@dataclass(frozen=True, slots=True)
class Trial:
    """One number of devices: the violation rate with its interval when the run was stopped, after so many seconds.

    `settled`: the interval lay on one side of epsilon; where it did not up to the end, the rate itself decides.
    """

    devices: int
    rate: float
    low: float
    high: float
    responses: int
    simulated_s: float
    settled: bool
    holds: bool


@dataclass(frozen=True, slots=True)
class Found:
    """One seed's capacity and the way to it; `bounded` where even the most devices were served."""

    devices: int
    trials: tuple[Trial, ...]
    bounded: bool = False


def search(scenario: Scenario, seed: int, rule: Rule) -> Found:
    """Double until the rate is too high, then halve the gap."""
    trials: dict[int, Trial] = {}

    def holds(devices: int) -> bool:
        trials[devices] = attempt(replace(scenario, devices=devices), seed, rule)
        return trials[devices].holds

    low, high = 0, min(FIRST_TRY, rule.most)
    while holds(high):
        low = high
        if low == rule.most:
            return Found(low, tuple(trials.values()), bounded=True)
        high = min(2 * high, rule.most)
    while high - low > max(1, rule.resolution * low):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Found(low, tuple(trials.values()))


def attempt(scenario: Scenario, seed: int, rule: Rule) -> Trial:
    """Let one simulation run for longer and longer until the rate's interval lies on one side of epsilon.

    The interval has its confidence over all looks together.
    """
    simulation = Simulation(scenario, seed)
    for share in LOOKS:
        seconds = scenario.warmup_s + share * (scenario.duration_s - scenario.warmup_s)
        violated, _ = violations(scenario, simulation.run(seconds), rule.objective)
        turns = len(violated) / scenario.devices
        enough = turns >= FEWEST_TURNS and len(violated) >= FEWEST_RESPONSES
        if not enough and share < 1:
            continue
        rate, low, high = interval(violated, int(turns))
        settled = enough and (low > rule.epsilon or high <= rule.epsilon)
        if settled or share == 1:
            break
    if not len(violated):
        raise SkitError(
            f"no response of {scenario.devices} devices is due within {scenario.duration_s:g} s: simulate for longer"
        )
    return Trial(scenario.devices, rate, low, high, len(violated), seconds, settled, holds=bool(rate <= rule.epsilon))


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
class Row:
    """One series under one SLO: what each seed found, or why nothing can be served."""

    point: Point
    found: Sequence[Found]
    refused: str = ""

    def describe(self) -> Fields:
        """As `summary.json` holds it."""
        values = {"series": self.point.series.label, **{name: getattr(self.point, name) for name in HELD}}
        if self.refused:
            return {**values, "capacity": estimate([0.0]).describe(), "refused": self.refused, "seeds": []}
        trials = [trial for one in self.found for trial in one.trials]
        return {
            **values,
            "capacity": estimate([float(one.devices) for one in self.found], 0.0).describe(),
            "bounded": any(one.bounded for one in self.found),
            "settled": sum(trial.settled for trial in trials) / len(trials),
            "simulated_s": sum(trial.simulated_s for trial in trials),
            "seeds": [{"devices": one.devices, "trials": [asdict(t) for t in one.trials]} for one in self.found],
        }


def find_all(settings: Settings, rule: Rule, builder: Builder, report: Callable[[int, int], None]) -> list[Row]:
    """Every series under every SLO and estimator, seed by seed."""
    points = settings.points()
    scenarios: dict[Point, Scenario] = {}
    refused: dict[Point, str] = {}
    for point in points:
        try:
            scenarios[point] = builder.scenario(point)
        except SkitError as error:
            refused[point] = str(error)
    if not scenarios:
        raise SkitError(next(iter(refused.values())))
    seeds = range(settings.seed, settings.seed + settings.seeds)
    runs = [(point, seed) for point in scenarios for seed in seeds]
    found: Mapping[Point, list[Found]] = {point: [] for point in points}
    report(0, len(runs))
    searches = in_turn(search, [(scenarios[point], seed, rule) for point, seed in runs], settings.jobs)
    for done, ((point, _), one) in enumerate(zip(runs, searches, strict=True), 1):
        found[point].append(one)
        report(done, len(runs))
    return [Row(point, found[point], refused.get(point, "")) for point in points]


def summarise(rows: Sequence[Row], rule: Rule) -> Fields:
    """The content of `summary.json`."""
    described = [row.describe() for row in rows]
    return {
        "rule": asdict(rule),
        "axes": {axis: list(dict.fromkeys(row[axis] for row in described)) for axis in HELD},
        "rows": described,
        "guards": guards(described, "capacity", smaller_is_better=False),
    }
