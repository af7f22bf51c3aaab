"""Simulate experiments: how often is a verdict on equally fast methods false, and an interval without the truth?"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.common import Bound, Figure, Outcome, Setting
from specbench_kit.metrics import paired
from specbench_kit.metrics.paired import Side
from specbench_kit.metrics.statistics import Array, ComparisonFamily
from specbench_kit.metrics.verdicts import FASTER, SLOWER, verdict

EXPERIMENTS = 2000
SIZES = (6, 10, 20, 40)
METHODS = (2, 8)
NOISE = 0.1
"""Standard deviation of the logarithm of a time around the value that follows from the prompt's length."""
SPEEDUP = 1.5

Draw = Callable[[np.random.Generator, int], Array]
LENGTHS: dict[str, Draw] = {
    "log-normal": lambda rng, size: rng.lognormal(5, 0.8, size),
    "heavy-tailed": lambda rng, size: 50 * (1 + rng.pareto(1.5, size)),
}
"""Distributions of output lengths."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Equally fast methods on `prompts` prompts, each `SPEEDUP` times as fast as their baseline."""

    lengths: str
    methods: int
    prompts: int

    def simulate(self, seed: int) -> tuple[bool, bool]:
        """Simulate one experiment: is a difference claimed, and does an interval contain the true speedup?"""
        rng = np.random.default_rng([seed, self.methods, self.prompts])
        lengths = LENGTHS[self.lengths](rng, self.prompts)
        units = {str(number): number for number in range(self.prompts)}
        baseline = _timed(lengths * SPEEDUP, rng)
        sides = [Side(_timed(lengths, rng), baseline) for _ in range(self.methods)]
        level = self._level(sides, units)
        reference = min(sides, key=lambda side: sum(side.own.values()))
        comparisons = [paired.relative_speed(side, reference, units) for side in sides if side is not reference]
        claims = [
            verdict(speed.ratio.value, speed.interval(level), speed.ratio.units) for speed in comparisons if speed
        ]
        own = paired.speedup(sides[0], units)
        low, high = (own and own.interval()) or (0.0, 0.0)
        return any(claim in (FASTER, SLOWER) for claim in claims), low <= SPEEDUP <= high

    def _level(self, sides: list[Side], units: dict[str, int]) -> float:
        arms = paired.speed_residuals([(side.own, side.baseline) for side in sides], units)
        freedom = paired.degrees_of_freedom([side.own for side in sides], units)
        return ComparisonFamily(arms, range(self.methods), [True] * self.methods, freedom).level()

    def rates(self, experiments: int) -> tuple[float, float]:
        """Return the shares of experiments with a false verdict and of intervals that contain the true speedup."""
        false, covered = np.array([self.simulate(seed) for seed in range(experiments)]).mean(axis=0)
        return float(false), float(covered)


def _timed(seconds: Array, rng: np.random.Generator) -> dict[tuple[str, int], float]:
    noisy = seconds * rng.lognormal(0, NOISE, len(seconds))
    return {(str(number), 0): float(value) for number, value in enumerate(noisy)}


def run(setting: Setting) -> Outcome:  # noqa: ARG001
    """Check that a family of verdicts errs in 5% of experiments, and an interval as often."""
    figures = []
    for lengths in LENGTHS:
        for methods in METHODS:
            for prompts in SIZES:
                false, covered = Scene(lengths, methods, prompts).rates(EXPERIMENTS)
                name = f"{lengths}, {methods} methods, {prompts} prompts"
                figures.append(Figure(f"false verdicts: {name}", 100 * false, "%", Bound(most=6)))
                bound = Bound(least=93, most=97) if prompts >= 10 else None
                figures.append(Figure(f"coverage: {name}", 100 * covered, "%", bound))
    note = f"{EXPERIMENTS:,} experiments each; times vary by {NOISE:.0%} around those that follow from the lengths."
    return Outcome("Verdicts on methods of equal speed", figures, [note])
