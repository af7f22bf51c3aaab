"""Sentences on a reproduced experiment."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import significant, times

Fields = Mapping[str, Any]


def verdict(found: Fields) -> str:
    """One sentence: reproduced within so much, or what prevents it."""
    parts = [part for part in (_numbers(found), _statements(found)) if part]
    if not parts:
        return "Nothing to be held against: the text of the paper has no number here."
    good = all(reached for reached, _ in parts)
    sentence = "; ".join(said for _, said in parts)
    return f"Reproduced: {sentence}." if good else f"Not reproduced: {sentence}. {found['prevented']}".strip()


def _numbers(found: Fields) -> tuple[bool, str] | None:
    """Whether all lie within the goal, in words; None without any."""
    compared = [one for one in found["published"] if one["simulated_over_published"]]
    if not compared:
        return None
    worst = max(compared, key=lambda one: abs(one["simulated_over_published"] - 1))
    off = abs(worst["simulated_over_published"] - 1)
    numbers = f"all {len(compared)} numbers" if len(compared) > 1 else "the one number"
    if off <= found["goal"]:
        return True, f"{numbers} within {percent(off)}" if off else f"{numbers} to the digit"
    within = sum(abs(one["simulated_over_published"] - 1) <= found["goal"] for one in compared)
    share = f"{within} of {len(compared)} numbers lie within {percent(found['goal'])}"
    far = f"the farthest, {_named(worst, found)}, is {times(worst['simulated_over_published'])} the published one"
    return False, f"{share}; {far}"


def _statements(found: Fields) -> tuple[bool, str] | None:
    """The same of what the paper states without a number of its own."""
    stated = [one for one in found["published"] if one["holds"] is not None]
    if not stated:
        return None
    if broken := [_named(one, found) for one in stated if not one["holds"]]:
        return False, f"{len(stated) - len(broken)} of {len(stated)} statements hold, not {' and '.join(broken)}"
    return True, f"all {len(stated)} statements hold" if len(stated) > 1 else "the one statement holds"


def published(one: Fields) -> str:
    """The number as it stands in the paper, or the bound."""
    return "" if one["value"] is None else f"{one['bound']} {significant(one['value'], 4)}".strip()


def outcome(one: Fields) -> str:
    """Ours over the published number, or whether the bound holds."""
    if one["holds"] is None:
        return times(one["simulated_over_published"])
    return "holds" if one["holds"] else "does not hold"


def _named(one: Fields, found: Fields) -> str:
    """Whose and where, and which figure of it where there are several."""
    several = len({other["metric"] for other in found["published"]}) > 1
    return f"{place_of(one)}, {figure(one)}" if several else place_of(one)


def figure(one: Fields) -> str:
    """Which of a row's it is, without what all have in common."""
    return ".".join(one["metric"].split(".")[-2:])


def place_of(one: Fields) -> str:
    """Whose number, and where."""
    at = ", ".join(f"{name} {value}" for name, value in one["where"].items())
    return f"{one['series']} ({at})" if at else str(one["series"])


def percent(share: float) -> str:
    """0.1234 as 12.3 %."""
    return f"{significant(100 * share)} %"
