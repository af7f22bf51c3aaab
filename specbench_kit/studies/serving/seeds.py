"""One number from several seeds: its mean, with a 95% interval of Student's t."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Two-sided quantiles by degrees of freedom, from 1 on."""
Z_95 = 1.96


class SeedEstimate(NamedTuple):
    """Without a second seed there is no interval."""

    mean: float
    low: float | None = None
    high: float | None = None

    def describe(self) -> dict[str, float | None]:
        """As files hold it."""
        return self._asdict()


def estimate(values: Sequence[float], least: float | None = None, most: float | None = None) -> SeedEstimate:
    """Over seeds; the interval is cut where a quantity ends."""
    mean = fmean(values)
    if len(values) < 2:
        return SeedEstimate(mean)
    freedom = len(values) - 1
    half = (T_95[freedom - 1] if freedom <= len(T_95) else Z_95) * stdev(values) / sqrt(len(values))
    low, high = mean - half, mean + half
    return SeedEstimate(mean, low if least is None else max(least, low), high if most is None else min(most, high))


def over_seeds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same tree of figures with an estimate at every number; what a seed has no value for, it leaves out."""
    return {name: _joined(name, [one[name] for one in found]) for name in found[0]}


def _joined(name: str, values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    if not there:
        return None
    if isinstance(there[0], Mapping):
        return over_seeds(there)
    if isinstance(there[0], bool):
        return all(there)
    if isinstance(there[0], int | float):
        most = 1.0 if name.endswith("_rate") or name == "utilisation" else None
        return estimate([float(value) for value in there], 0.0, most).describe()
    return there[0]
