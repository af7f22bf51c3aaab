"""From a grid's rows to lines along its first axis, their break-even points, and a table for other programs."""

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

Fields = dict[str, Any]

PLAIN = (
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
"""Metrics of a row that are one number; cost efficiency only with prices, co-location only with an edge drafter."""


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One method along the first axis, other axes held."""

    label: str
    series: str
    points: Mapping[Value, SweepRow]


def lines(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> list[SweepLine]:
    """In the order of the rows."""
    along, held = axes[0], axes[1:]
    found: dict[str, SweepLine] = {}
    for row in rows:
        label = _label(row, held)
        found.setdefault(label, SweepLine(label, row.series, {}))
        found[label] = SweepLine(label, row.series, {**found[label].points, row.values[along.key]: row})
    return list(found.values())


def summarise(rows: Sequence[SweepRow], axes: Sequence[SweepAxis]) -> Fields:
    """The content of `summary.json`."""
    methods = [line for line in lines(rows, axes) if line.series != BASELINE]
    return {
        "axes": {axis.key: list(axis.values) for axis in axes},
        "break_even": [_break_even(line, axes[0], "speedup") for line in methods],
        "edge": [_break_even(line, axes[0], "colocated_ratio") for line in methods if _at_edge(line)],
        "fastest": list(_fastest(rows)),
        "rows": [_flat(row) for row in rows],
    }


def _fastest(rows: Sequence[SweepRow]) -> Iterator[Fields]:
    """Of every point the method with the highest speedup, and the next one."""
    by_place: dict[tuple[Value, ...], list[SweepRow]] = {}
    for row in rows:
        by_place.setdefault(tuple(row.values.values()), []).append(row)
    for there in by_place.values():
        best, *others = sorted(there, key=lambda row: -row.overall["speedup"])
        next_best = others[0] if others else best
        yield {
            "place": dict(best.values),
            "method": best.spec,
            "speedup": best.overall["speedup"],
            "next": next_best.spec,
            "lead": best.overall["speedup"] / next_best.overall["speedup"],
        }


def _label(row: SweepRow, held: Sequence[SweepAxis]) -> str:
    values = {axis.key: row.values[axis.key] for axis in held if len(axis.values) > 1}
    spec = with_options(row.series, values)
    fields = [f"{axis.key}={values[axis.key]}" for axis in held if axis.key in values and axis.method is None]
    return ", ".join([spec, *fields])


def _at_edge(line: SweepLine) -> bool:
    """Whether the method drafts beyond a link all along the axis."""
    return all(row.overall.get("colocated_ratio") is not None for row in line.points.values())


def _break_even(line: SweepLine, axis: SweepAxis, metric: str) -> Fields:
    """Where a factor of the line passes 1; values that are no numbers have no place in between."""
    speedups = {value: row.overall[metric] for value, row in line.points.items()}
    ahead = [value for value, speedup in speedups.items() if speedup > 1]
    found: Fields = {"method": line.label, "axis": axis.key, "faster_at": ahead}
    if any(row.overall["speedup_units"] < FEWEST_UNITS for row in line.points.values()):
        return {**found, "faster_at": [], "verdict": TOO_FEW, "crossings": []}
    if not axis.numbers:
        verdict = "everywhere" if len(ahead) == len(speedups) else "in part" if ahead else "nowhere"
        return {**found, "verdict": verdict, "crossings": []}
    numeric = break_even(axis.numbers, list(speedups.values()))
    return {**found, "verdict": numeric.verdict, "crossings": [asdict(one) for one in numeric.crossings]}


def _flat(row: SweepRow) -> Fields:
    overall = row.overall
    low, high = overall["intervals"]["speedup"] or (None, None)
    return {
        **row.values,
        "method": row.spec,
        **{name: overall.get(name) for name in PLAIN},
        "speedup_low": low,
        "speedup_high": high,
        "ttft_mean_s": overall["ttft"]["mean"],
        "tpot_mean_s": overall["tpot"]["mean"],
        "tpot_p95_s": overall["tpot"]["p95"],
        **{f"{phase}_s": seconds for phase, seconds in overall["phase_seconds"].items()},
    }
