"""Differences between contenders on the same prompts, with paired bootstrap intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.reports.statistics import Interval, percentile_interval, resampled_sums

Sums = NDArray[np.float64]
"""[resamples], or one number for the prompts as they are."""
Get = Callable[[str, str], Sums]
"""From a contender's name and a column's to its sum over prompts."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity and its 95% interval; None where it has no meaning, or too few prompts for an interval."""

    value: float | None
    interval: Interval | None


class Paired:
    """Sums over prompts, and over bootstrap samples of the prompts that all contenders share."""

    def __init__(self, columns: Mapping[tuple[str, str], NDArray[Any]], seed: int = 0) -> None:
        self._place = {key: index for index, key in enumerate(columns)}
        table = np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
        self._sums = table.sum(axis=0, keepdims=True)
        self._samples = resampled_sums(table, seed=seed) if len(table) > 1 else np.empty((0, table.shape[1]))

    def estimate(self, quantity: Callable[[Get], Sums]) -> Estimate:
        """A quantity of sums; where it is not finite it has no meaning."""
        value, samples = (self._finite(quantity, sums) for sums in (self._sums, self._samples))
        return Estimate(float(value[0]) if len(value) else None, percentile_interval(samples) if len(value) else None)

    def _finite(self, quantity: Callable[[Get], Sums], sums: NDArray[np.float64]) -> Sums:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = quantity(lambda contender, column: sums[:, self._place[contender, column]])
        return found[np.isfinite(found)]
