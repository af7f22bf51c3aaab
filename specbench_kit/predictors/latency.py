"""The time that one score takes (WISP Table 11)."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np


class ScoresOne(Protocol):
    """Anything that scores one sample."""

    def score(self, features: Sequence[float], /) -> float:
        """Return the probability that a token is accepted."""
        ...


WARM_UP = 100
"""Untimed scores before the first timed one."""


def time_scores(
    scorer: ScoresOne, samples: Sequence[Sequence[float]], trials: int = 1000
) -> dict[str, float]:
    """Return statistics of the seconds that a single score takes, over `trials` scores of the
    samples [n, features].
    """
    rows = [tuple(map(float, row)) for row in samples]
    for trial in range(WARM_UP):
        scorer.score(rows[trial % len(rows)])
    seconds = np.empty(trials)
    for trial in range(trials):
        row = rows[trial % len(rows)]
        started_s = perf_counter()
        scorer.score(row)
        seconds[trial] = perf_counter() - started_s
    quantiles = {
        name: np.quantile(seconds, q) for name, q in (("median", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    spread = {
        "mean": seconds.mean(),
        "std": seconds.std(),
        "min": seconds.min(),
        "max": seconds.max(),
    }
    return {name: float(value) for name, value in (spread | quantiles).items()}


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since this call."""
    started_s = perf_counter()
    return lambda: perf_counter() - started_s
