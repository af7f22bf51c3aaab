"""Metrics as people read them: each by its unit, with its interval, and the columns of a table."""

from collections.abc import Callable, Mapping
from typing import Any

from specbench_kit.metrics.vocabulary import Metric, Unit
from specbench_kit.reports.writing.formatting import ABSENT, count, interval, rate, seconds, share, significant, times

SHOW: Mapping[Unit, Callable[[Any], str]] = {
    "count": count,
    "number": significant,
    "share": share,
    "times": times,
    "seconds": seconds,
    "rate": rate,
}


def speedup_with_interval(overall: dict[str, Any]) -> str:
    """`1.62x (1.55–1.70)`, or a dash without a baseline."""
    if overall.get("speedup") is None:
        return ABSENT
    bounds = overall["intervals"]["speedup"]
    return times(overall["speedup"]) + (f" ({interval(bounds)})" if bounds else "")


def value_with_interval(metric: Metric, overall: dict[str, Any]) -> str:
    """A metric's value, followed by its interval where it has one of any width."""
    show = SHOW[metric.unit]
    value, bounds = show(overall.get(metric.name)), overall["intervals"].get(metric.name)
    ends = [show(bound) for bound in bounds or ()]
    return f"{value} ({'–'.join(ends)})" if len(set(ends)) == 2 else value


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "speedup (95%)": speedup_with_interval,
    "throughput": lambda overall: rate(overall.get("throughput")),
    "acceptance length": lambda overall: significant(overall["acceptance_length"]),
    "acceptance": lambda overall: share(overall["acceptance_rate"]),
    "draft efficiency": lambda overall: share(overall["draft_efficiency"]),
    "TTFT mean": lambda overall: seconds(overall["ttft"]["mean"]),
    "TPOT mean": lambda overall: seconds(overall["tpot"]["mean"]),
    "wasted drafting": lambda overall: share(overall["wdt_share"]),
}
"""The columns of the table that compares methods, from the metrics of one of them."""
