"""What may be said of a ratio of times, and which methods may be called the fastest."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.metrics.statistics import FEWEST_UNITS, NO_WIDTH

FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference shown"
TOO_FEW = "too few prompts to tell"
NOT_LOSSLESS = "faster, but not lossless"
UNCHECKED = "faster, but its outputs were not checked"


def verdict(value: float | None, bounds: Sequence[float] | None, units: int) -> str:
    """What a ratio of speeds over that many units shows; `bounds` are None where every unit has the same ratio too.

    A recommendation says no more than this: an interval that holds 1 shows no gain.
    """
    if value is None or units < FEWEST_UNITS:
        return TOO_FEW
    low, high = bounds or (value * (1 - NO_WIDTH), value * (1 + NO_WIDTH))
    if low > 1:
        return FASTER
    return SLOWER if high < 1 else NO_DIFFERENCE


def may_win(summary: Mapping[str, Any]) -> bool | None:
    """Whether a run's outputs were checked, and held: token by token, or by the check of its sampling.

    None where nothing was checked: such runs win against each other only.
    """
    checks = [
        (summary.get("lossless") or {}).get("lossless"),
        (summary.get("sampling") or {}).get("consistent"),
    ]
    known = [found for found in checks if found is not None]
    return all(known) if known else None


def as_allowed(found: str, allowed: bool | None, rival: bool | None = True) -> str:
    """The verdict, unless it names a winner that may not win; `rival` is what `may_win` says of the other side."""
    if found != FASTER or allowed:
        return found
    if allowed is None:
        return found if rival is None else UNCHECKED
    return NOT_LOSSLESS
