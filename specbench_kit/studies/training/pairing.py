"""Differences between contenders on the same prompts, with paired intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.metrics.statistics import Interval, interval_of_estimate

Sums = NDArray[np.float64]
"""Sums over all prompts but one, [prompts], or one sum over all prompts, [1]."""
SumOf = Callable[[str, str], Sums]
"""Returns the sums of a column, by the contender's name and the column's name."""


@dataclass(frozen=True, slots=True)
class PairedEstimate:
    """A quantity and its 95% interval; None if it is undefined, or if there are too few prompts for an interval."""

    value: float | None
    interval: Interval | None


class PairedSums:
    """Sums over the prompts that all contenders share, and over all of these prompts but one (the jackknife)."""

    def __init__(self, columns: Mapping[tuple[str, str], ArrayLike]) -> None:
        self._index = {key: index for index, key in enumerate(columns)}
        table = np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
        self._sums = table.sum(axis=0, keepdims=True)
        self._without = self._sums - table
        total = np.where(self._sums > 0, self._sums, 1)
        self._weight = (table / total).mean(axis=1)

    def estimate(self, quantity: Callable[[SumOf], Sums]) -> PairedEstimate:
        """Return a quantity of sums; it is undefined if it is not finite."""

        def evaluate(sums: Sums) -> Sums:
            return quantity(lambda contender, column: sums[:, self._index[contender, column]])

        with np.errstate(divide="ignore", invalid="ignore"):
            (value,), without = evaluate(self._sums), evaluate(self._without)
        if not np.isfinite(value):
            return PairedEstimate(None, None)
        return PairedEstimate(float(value), interval_of_estimate(float(value), without, self._weight))
