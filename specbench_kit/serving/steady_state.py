"""Whether a run has come to rest: where its warm-up ends, and whether its throughput drifts."""

from math import sqrt

import numpy as np

from specbench_kit.serving.result import Column, SimulationResult
from specbench_kit.serving.scenario import Scenario

STEADY_WITHIN = 0.05
"""By which the throughput of the second half may differ from the first."""
SPANS = 60
"""Into which a run is cut to find its warm-up."""
SIGNIFICANT = 2.9
"""Two-sided 98% quantile of Student's t with 8 degrees of freedom: two halves of five spans."""


def drift(scenario: Scenario, result: SimulationResult) -> float | None:
    """By how much more the second half of what counts commits than the first; None where the first has nothing."""
    first, second = _halves(scenario, result, 1)
    return float(second[0] / first[0] - 1) if first[0] else None


def drifts(scenario: Scenario, result: SimulationResult) -> bool:
    """Whether the halves differ by more than chance would have them, and by enough to matter."""
    first, second = _halves(scenario, result, 5)
    if not first.sum():
        return True
    error = sqrt((first.var(ddof=1) + second.var(ddof=1)) / 5)
    difference = abs(float(second.mean() - first.mean()))
    return difference > max(STEADY_WITHIN * float(first.mean()), SIGNIFICANT * error)


def warm_up_s(result: SimulationResult) -> float:
    """Where the warm-up ends, in the first half: what is left has the least standard error (MSER, White 1997)."""
    tokens = _tokens(result, 0.0, result.end_s, SPANS)
    left = [tokens[first:] for first in range(SPANS // 2 + 1)]
    errors = [float(spans.var()) / len(spans) for spans in left]
    return errors.index(min(errors)) * result.end_s / SPANS


def _halves(scenario: Scenario, result: SimulationResult, spans: int) -> tuple[Column, Column]:
    tokens = _tokens(result, scenario.warmup_s, result.end_s, 2 * spans)
    return tokens[:spans], tokens[spans:]


def _tokens(result: SimulationResult, start_s: float, end_s: float, spans: int) -> Column:
    """Committed in each of so many equal spans."""
    answered_s, committed = result.rounds["answered_s"], result.rounds["committed"]
    counted = (answered_s >= start_s) & (answered_s < end_s)
    edges = np.linspace(start_s, end_s, spans + 1)
    tokens: Column = np.histogram(answered_s[counted], edges, weights=committed[counted])[0].astype(np.float64)
    return tokens
