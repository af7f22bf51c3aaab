"""A comparison's tables for other programs, as CSV."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.core.csv_text import csv_text
from specbench_kit.metrics import setting
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS, Metric
from specbench_kit.reports.writing import machine

Fields = dict[str, Any]

UNITS = {"seconds": "_s", "rate": "_tok_per_s"}
BOUNDED = ("speedup", "relative_speed", "baseline_ratio", "acceptance_length", "acceptance_rate", "draft_efficiency")
DIGITS = 9
"""Significant digits: beyond them, processors differ in how they add up."""


def to_csv(comparison: Comparison) -> str:
    """One line per table and method, with every metric; what has no value is left empty."""
    rows = [
        _flat(comparison, part.kind, part.name, label, row)
        for part in comparison.parts
        for label, row in part.rows.items()
    ]
    return csv_text(rows)


def _flat(comparison: Comparison, kind: str, name: str, label: str, row: Mapping[str, Any]) -> Fields:
    runs = next([run.fields for run in one.runs.values()] for one in comparison.series if one.label == label)
    run = runs[0]
    time = {"time_kind": run.get("time_kind"), "deployment": setting.deployment_name(run)}
    forced = {"forced": bool(comparison.overruled), "reference": comparison.reference}
    warned = {"warnings": " ".join(machine.of_all(runs)) or None}
    values: Fields = {_column(metric): row.get(metric.name) for metric in METRICS}
    for metric in BOUNDED:
        values[f"{metric}_low"], values[f"{metric}_high"] = row["intervals"].get(metric) or (None, None)
    values["verdict"] = row.get("verdict")
    for metric in DISTRIBUTIONS:
        values |= {f"{metric}_{statistic}_s": value for statistic, value in row[metric].items()}
    values |= {f"{phase}_s": row["phase_seconds"][phase] for phase in PHASES}
    values["sampling_consistent"] = row.get("sampling_consistent")
    values |= {f"lossless_{key}": value for key, value in (row.get("lossless") or {}).items()}
    method = {
        "method": label,
        "options": setting.describe_options(run),
        "made_ready_with": setting.describe_inputs(run),
    }
    return {"table": kind, "name": name, **method, **time, **forced, **warned, **_rounded(values)}


def _column(metric: Metric) -> str:
    """The metric's name, with its unit where that is not part of it."""
    unit = UNITS.get(metric.unit, "")
    has_unit = metric.name.endswith(unit) or "_per_" in metric.name
    return metric.name if has_unit else metric.name + unit


def _rounded(values: Fields) -> Fields:
    return {name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for name, value in values.items()}
