"""Sentences about sweeps that report and terminal say in the same words."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.metrics.verdicts import TOO_FEW
from specbench_kit.reports.writing.formatting import significant

Fields = Mapping[str, Any]

RIVAL = "centralised autoregressive serving"
COLOCATED = "itself co-located"


def headlines(summary: Fields) -> list[str]:
    """Where every method stops to pay for itself, and where drafting at the edge does."""
    values = next(iter(summary["axes"].values()))
    lines = [headline(found, values) for found in summary["break_even"]]
    return lines + [f"{one['method']} at the edge {outcome(one, values, COLOCATED)}" for one in summary["edge"]]


def headline(found: Fields, values: list[Any]) -> str:
    """Where one method stops to pay for itself; `values` are those of the axis."""
    return f"{found['method']} {outcome(found, values)}"


def outcome(found: Fields, values: list[Any], rival: str = RIVAL) -> str:
    """The same without the method."""
    span = f"{found['axis']} from {number(min(values))} to {number(max(values))}" if _numeric(values) else found["axis"]
    if found["verdict"] == "everywhere":
        return f"beats {rival} everywhere in the range ({span})."
    if found["verdict"] == "nowhere":
        return f"beats {rival} nowhere in the range ({span})."
    if found["verdict"] == TOO_FEW:
        return f"was replayed on too few prompts to tell whether it beats {rival} ({span})."
    if not found["crossings"]:
        return f"beats {rival} only at {found['axis']} = {', '.join(map(str, found['faster_at']))}."
    changes = [_change(crossing, found["axis"], rival) for crossing in found["crossings"]]
    return f"{', '.join(changes)}."


def number(value: Any) -> str:
    """A value of an axis."""
    return f"{value:g}" if _numeric([value]) else str(value)


def bracket(crossing: Fields) -> str:
    """The neighbours on the grid that a break-even point lies between."""
    return f"{number(crossing['low'])} and {number(crossing['high'])}"


def _change(crossing: Fields, axis: str, rival: str) -> str:
    verb = "stops" if crossing["stops"] else "starts"
    return f"{verb} beating {rival} at {axis} = {significant(crossing['at'])} (between {bracket(crossing)})"


def _numeric(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
