"""Sentences on a reproduced experiment."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import significant, times

Fields = Mapping[str, Any]


def verdict(found: Fields) -> str:
    """One sentence: reproduced within so much, or what prevents it."""
    compared = [one for one in found["published"] if one["simulated_over_published"]]
    if not compared:
        return "Nothing to be held against: the text of the paper has no number here."
    worst = max(compared, key=lambda one: abs(one["simulated_over_published"] - 1))
    off = abs(worst["simulated_over_published"] - 1)
    numbers = f"all {len(compared)} numbers" if len(compared) > 1 else "the one number"
    if not off:
        return f"Reproduced: {numbers} to the digit."
    if off <= found["goal"]:
        return f"Reproduced: {numbers} within {percent(off)}."
    share = f"{found['within']} of {len(compared)} numbers lie within {percent(found['goal'])}"
    far = f"the farthest, {place_of(worst)}, is {times(worst['simulated_over_published'])} the published one"
    return f"Not reproduced: {share}; {far}. {found['prevented']}".strip()


def place_of(one: Fields) -> str:
    """Whose number, and where."""
    at = ", ".join(f"{name} {value}" for name, value in one["where"].items())
    return f"{one['series']} ({at})" if at else str(one["series"])


def percent(share: float) -> str:
    """0.1234 as 12.3 %."""
    return f"{significant(100 * share)} %"
