"""What reports say of a method that drafts beyond a link, beside the same method co-located with its target."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import interval, seconds, significant, times
from specbench_kit.reports.writing.markup import code, table

Fields = Mapping[str, Any]

HEADER = (
    "method",
    "speedup at the edge (95%)",
    "co-located (95%)",
    "edge / co-located",
    "beats co-located below",
    "with all drafting hidden, below",
    "beats autoregressive below",
    "capacity factor",
)
WINDOWS = ("rtt_window_s", "rtt_window_overlapped_s", "rtt_window_autoregressive_s")
NOTE = (
    "Co-located: the same rounds with the draft model beside the target, so that a request crosses the link once; what "
    "was drafted while the target verified is drafted after it there. The round trips follow in closed form from the "
    "seconds of this run, everything else held; 0 is nowhere. The capacity factor is how many times as many clients a "
    "busy server keeps up with if they draft themselves, where a single request gains nothing from the edge "
    '("Speculation at a Distance", arXiv 2606.25091).'
)


def has_edge(overall: Fields) -> bool:
    """Whether a method's metrics hold an edge against a co-located draft model."""
    return overall.get("colocated_ratio") is not None


def section(methods: Mapping[str, Fields], deployment: Fields | None) -> str:
    """A row of metrics by label; nothing where nobody drafted beyond a link."""
    rows = [_row(label, overall) for label, overall in methods.items() if has_edge(overall)]
    if not rows:
        return ""
    return f"## Edge or co-located (modelled)\n\n{table(HEADER, rows)}\n\n{NOTE} {_assumption(deployment or {})}"


def cautions(label: str, overall: Fields) -> list[str]:
    """The line that goes with an edge's result where a server that holds both models would be faster."""
    if not has_edge(overall) or overall["colocated_ratio"] >= 1:
        return []
    below = overall["rtt_window_s"]
    window = f"below a round trip of {seconds(below)}" if below else "at no round trip"
    factor = times(1 / overall["colocated_ratio"])
    return [
        f"CO-LOCATED IS FASTER: with its draft model beside the target, {label} would be {factor} as fast; drafting at "
        f"the edge wins {window}."
    ]


def _row(label: str, overall: Fields) -> tuple[str, ...]:
    return (
        code(label),
        _factor(overall, "speedup"),
        _factor(overall, "colocated_speedup"),
        _factor(overall, "colocated_ratio"),
        *(seconds(overall.get(name)) for name in WINDOWS),
        significant(overall.get("capacity_factor")),
    )


def _factor(overall: Fields, name: str) -> str:
    bounds = (overall.get("intervals") or {}).get(name)
    return times(overall.get(name)) + (f" ({interval(bounds)})" if bounds else "")


def _assumption(deployment: Fields) -> str:
    beside = deployment.get("colocated")
    if beside:
        return f"Beside the target, the draft model runs on {beside['device']}."
    return "Beside the target, the draft model is taken to be as fast as at the edge, for want of other figures."
