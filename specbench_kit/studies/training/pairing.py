"""Differences between contenders on the same prompts, with paired intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.metrics.statistics import Interval, interval_of_estimate

Sums = NDArray[np.float64]
"""[prompts], each without one of them, or one number for all of them."""
Get = Callable[[str, str], Sums]
"""From a contender's name and a column's to its sum over prompts."""


@dataclass(frozen=True, slots=True)
class PairedEstimate:
    """A quantity and its 95% interval; None where it has no meaning, or too few prompts for an interval."""

    value: float | None
    interval: Interval | None


class PairedSums:
    """Sums over the prompts that all contenders share, and over all of them but one."""

    def __init__(self, columns: Mapping[tuple[str, str], NDArray[Any]]) -> None:
        self._place = {key: index for index, key in enumerate(columns)}
        table = np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
        self._sums = table.sum(axis=0, keepdims=True)
        self._without = self._sums - table
        total = np.where(self._sums > 0, self._sums, 1)
        self._weight = (table / total).mean(axis=1)

    def estimate(self, quantity: Callable[[Get], Sums]) -> PairedEstimate:
        """A quantity of sums; where it is not finite it has no meaning."""
        (value,), without = (self._of(quantity, sums) for sums in (self._sums, self._without))
        if not np.isfinite(value):
            return PairedEstimate(None, None)
        return PairedEstimate(float(value), interval_of_estimate(float(value), without, self._weight))

    def _of(self, quantity: Callable[[Get], Sums], sums: NDArray[np.float64]) -> Sums:
        with np.errstate(divide="ignore", invalid="ignore"):
            return quantity(lambda contender, column: sums[:, self._place[contender, column]])
