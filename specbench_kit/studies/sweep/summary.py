"""Summaries of a sweep: lines along its first axis, their break-even points, and a table for other programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specbench_kit.deployments.fields import Value
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import TOO_FEW
from specbench_kit.metrics.vocabulary import COLOCATED
from specbench_kit.studies.bench.lanes import BASELINE
from specbench_kit.studies.sweep.axes import SweepAxis, with_options
from specbench_kit.studies.sweep.break_even import break_even
from specbench_kit.studies.sweep.grid import SweepRow

SINGLE_NUMBERS = (
    "finished",
    "tokens",
    "rounds",
    "acceptance_length",
    "acceptance_rate",
    "draft_efficiency",
    "makespan_s",
    "throughput",
    "speedup",
    "server_tokens_per_busy_second",
    "cost_efficiency",
    "wdt_share",
    *COLOCATED,
)
"""Metrics of a row that are one number; cost efficiency exists only with prices, co-location only with an edge drafter.
"""


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One method along the first axis, with the other axes held constant; `points` are its rows by the first value."""

    label: str
    series: str
    points: Mapping[Value, SweepRow]


def lines(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> list[SweepLine]:
    """Return the lines in the order of the rows."""
    first, *constant = axes
    points: dict[tuple[str, str], dict[Value, SweepRow]] = {}
    for row in rows:
        # The label names the constant values that distinguish a method's lines.
        values = {axis.key: row.values[axis.key] for axis in constant if len(axis.values) > 1}
        fields = [f"{axis.key}={values[axis.key]}" for axis in constant if axis.key in values and axis.method is None]
        label = ", ".join([with_options(row.series, values), *fields])
        points.setdefault((label, row.series), {})[row.values[first.key]] = row
    return [SweepLine(label, series, by_value) for (label, series), by_value in points.items()]


def summarise(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    methods = [line for line in lines(rows, axes) if line.series != BASELINE]
    drafting_at_edge = [
        line for line in methods if all(row.overall.get("colocated_ratio") is not None for row in line.points.values())
    ]
    return {
        "axes": {axis.key: list(axis.values) for axis in axes},
        "break_even": [_break_even(line, axes[0], "speedup") for line in methods],
        "edge": [_break_even(line, axes[0], "colocated_ratio") for line in drafting_at_edge],
        "fastest": list(_fastest(rows)),
        "rows": [_table_row(row) for row in rows],
    }


def _fastest(rows: Sequence[SweepRow]) -> Iterator[dict[str, object]]:
    """Yield for every grid point the methods with the highest and the next highest speedup."""
    by_point: dict[tuple[Value, ...], list[SweepRow]] = {}
    for row in rows:
        by_point.setdefault(tuple(row.values.values()), []).append(row)
    for point in by_point.values():
        best, *slower = sorted(point, key=lambda row: -row.overall["speedup"])
        second = slower[0] if slower else best
        yield {
            "place": dict(best.values),
            "method": best.spec,
            "speedup": best.overall["speedup"],
            "next": second.spec,
            "lead": best.overall["speedup"] / second.overall["speedup"],
        }


def _break_even(line: SweepLine, axis: SweepAxis, metric: str) -> dict[str, object]:
    """Return where a ratio of the line is above 1; only an axis of numbers has crossings between its values."""
    ratios = {value: row.overall[metric] for value, row in line.points.items()}
    faster = [value for value, ratio in ratios.items() if ratio > 1]
    result = {"method": line.label, "axis": axis.key, "faster_at": faster}
    if any(row.overall["speedup_units"] < FEWEST_UNITS for row in line.points.values()):
        return {**result, "faster_at": [], "verdict": TOO_FEW, "crossings": []}
    if not axis.numbers:
        verdict = "everywhere" if len(faster) == len(ratios) else "in part" if faster else "nowhere"
        return {**result, "verdict": verdict, "crossings": []}
    numeric = break_even(axis.numbers, list(ratios.values()))
    return {**result, "verdict": numeric.verdict, "crossings": [asdict(crossing) for crossing in numeric.crossings]}


def _table_row(row: SweepRow) -> dict[str, object]:
    overall = row.overall
    low, high = overall["intervals"]["speedup"] or (None, None)
    typical_low, typical_high = overall["intervals"].get("typical_speedup") or (None, None)
    return {
        **row.values,
        "method": row.spec,
        **{name: overall.get(name) for name in SINGLE_NUMBERS},
        "speedup_low": low,
        "speedup_high": high,
        "typical_speedup": overall.get("typical_speedup"),
        "typical_speedup_low": typical_low,
        "typical_speedup_high": typical_high,
        "ttft_mean_s": overall["ttft"]["mean"],
        "tpot_mean_s": overall["tpot"]["mean"],
        "tpot_p95_s": overall["tpot"]["p95"],
        **{f"{phase}_s": seconds for phase, seconds in overall["phase_seconds"].items()},
    }
