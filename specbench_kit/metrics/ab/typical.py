"""How many times as fast a server is in a typical turn, and which differences of a whole report are shown.

A turn in which the machine was slow is one of many, however long it took.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import log

import numpy as np

from specbench_kit.metrics.statistics import FEWEST_UNITS, LEVEL, NO_WIDTH, Array
from specbench_kit.metrics.typical import MOST_UNITS, SHUFFLES, Typical, limit_of_one, spread_of_ranks

Ratios = Mapping[tuple[int, int], float]
"""How many times faster the second server was, by repeat and turn."""


def turn_logs(ratios: Ratios, turns: int) -> Array:
    """Return the logarithmic ratio of each turn, the median over its repeats: [turns], nan where there is none."""
    by_turn: defaultdict[int, list[float]] = defaultdict(list)
    for (_, turn), ratio in ratios.items():
        by_turn[turn].append(log(ratio))
    logs = np.full(turns, np.nan)
    for turn, repeats in by_turn.items():
        logs[turn] = np.median(repeats)
    return logs


def typical_of(logs: Array) -> Typical | None:
    """Return the typical ratio over the turns that have one."""
    return Typical.of(logs[np.isfinite(logs)])


def limit_of_turns(loads: Sequence[Sequence[Array]], level: float = LEVEL, seed: int = 0) -> float:
    """Return the deviation beyond which differences are shown, such that all verdicts of a report hold together.

    `loads` holds, for each load, the logarithmic ratios [turns] of its figures. Equal servers could have had each
    other's times of any turn, all figures at once: exchanging them turn by turn says how far apart equal servers come
    out. What is shown is set aside, and the others are compared among themselves again.
    """
    left = [list(figures) for figures in loads]
    while True:
        limit = _largest(left, level, np.random.default_rng(seed))
        kept = [[logs for logs in figures if _deviation(logs) <= max(limit, _limit_of(logs))] for figures in left]
        if sum(map(len, kept)) == sum(map(len, left)):
            return limit
        left = kept


def _limit_of(logs: Array) -> float:
    return limit_of_one(max(1, int(np.isfinite(logs).sum())))


def _deviation(logs: Array) -> float:
    typical = typical_of(logs)
    return abs(typical.deviation) if typical else 0.0


def _largest(loads: Sequence[Sequence[Array]], level: float, rng: np.random.Generator) -> float:
    """Return what the largest deviation of equal servers exceeds in no more reports than the level allows."""
    largest = np.zeros(SHUFFLES)
    for figures in filter(None, loads):
        table = np.column_stack(figures)
        if len(table) > MOST_UNITS:
            table = table[np.linspace(0, len(table) - 1, MOST_UNITS).astype(int)]
        exchanged = rng.choice([-1.0, 1.0], size=(SHUFFLES, len(table)))
        for logs in table.T:
            present = np.isfinite(logs)
            units = int(present.sum())
            if units >= FEWEST_UNITS:
                sums = exchanged[:, present] @ _signed_ranks(logs[present])
                largest = np.maximum(largest, np.abs(sums) / 2 / spread_of_ranks(units))
    return float(np.quantile(largest, level, method="higher"))


def _signed_ranks(logs: Array) -> Array:
    """Return Wilcoxon's signed ranks; a turn in which both servers took the same time has none."""
    ranks = np.abs(logs).argsort().argsort() + 1.0
    signed: Array = np.where(np.abs(logs) > NO_WIDTH, np.sign(logs), 0.0) * ranks
    return signed
