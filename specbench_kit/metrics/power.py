"""What a comparison could have shown: the smallest difference, and how many prompts tell the first from the second."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import NormalDist

from specbench_kit.metrics.rounds import Metrics

POWER = 0.8
"""The share of cases in which a difference is found that counts as one that can be shown."""
TOO_MANY = 100_000
"""Prompts from which on nobody would try to tell two methods apart."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Of the fastest rival that no difference is shown to: the `smallest` share by which it would have been shown.

    `needed` prompts would show the difference that was seen, None if that is out of reach.
    """

    rival: str
    smallest: float
    seen: float
    units: int
    needed: int | None


def resolution(rows: Iterable[tuple[str, Metrics]]) -> Resolution | None:
    """Return what could have been shown of the fastest of these rivals; None where its error is not known."""
    known = [(label, row) for label, row in rows if row.get("typical_relative_speed_error")]
    if not known:
        return None
    label, row = max(known, key=lambda entry: float(entry[1]["typical_relative_speed"]))
    error, seen = row["typical_relative_speed_error"], abs(log(row["typical_relative_speed"]))
    reach = (row["typical_relative_speed_limit"] + NormalDist().inv_cdf(POWER)) * error
    units = int(row["relative_speed_units"])
    needed = ceil(units * (reach / seen) ** 2) if seen * (TOO_MANY / units) ** 0.5 > reach else None
    return Resolution(label, exp(reach) - 1, exp(seen) - 1, units, needed)
