"""Checks for a steady state: where the warm-up ends, and if throughput drifts afterwards."""

from math import sqrt

import numpy as np

from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario

STEADY_WITHIN = 0.05
"""Relative difference of throughput between the two halves of a run that still counts as steady."""
SPANS = 60
"""Spans into which a run is cut to find the end of its warm-up."""
SIGNIFICANT = 2.9
"""Two-sided 98% quantile of Student's t with 8 degrees of freedom: two halves of five spans."""


def throughput_drift(scenario: Scenario, result: SimulationResult) -> float | None:
    """Return the relative growth of throughput from the first to the second half after the warm-up.

    None if the first half commits nothing.
    """
    first, second = _committed(result, scenario.warmup_s, result.end_s, 2)
    return float(second / first - 1) if first else None


def is_drifting(scenario: Scenario, result: SimulationResult) -> bool:
    """Return True if the halves after the warm-up differ by more than chance explains, and by enough to matter."""
    first, second = np.split(_committed(result, scenario.warmup_s, result.end_s, 10), 2)
    if not first.sum():
        return True
    error = sqrt((first.var(ddof=1) + second.var(ddof=1)) / 5)
    difference = abs(float(second.mean() - first.mean()))
    return difference > max(STEADY_WITHIN * float(first.mean()), SIGNIFICANT * error)


def warm_up_end_s(result: SimulationResult) -> float:
    """Return the end of the warm-up, at most half of the run: what follows it has the least standard error.

    This is the marginal standard error rule (MSER, White 1997).
    """
    tokens = _committed(result, 0.0, result.end_s, SPANS)
    errors = [float(tokens[first:].var()) / (SPANS - first) for first in range(SPANS // 2 + 1)]
    return errors.index(min(errors)) * result.end_s / SPANS


def _committed(result: SimulationResult, start_s: float, end_s: float, spans: int) -> Floats:
    """Return the tokens committed in each of so many equal spans."""
    answered_s, committed = result.rounds["answered_s"], result.rounds["committed"]
    counted = (answered_s >= start_s) & (answered_s < end_s)
    edges = np.linspace(start_s, end_s, spans + 1)
    tokens: Floats = np.histogram(answered_s[counted], edges, weights=committed[counted])[0].astype(np.float64)
    return tokens
