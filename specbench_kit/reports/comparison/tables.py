"""A comparison's tables for other programs: CSV, and LaTeX for a paper."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.csv_text import csv_text
from specbench_kit.metrics import setting
from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS, Metric
from specbench_kit.reports.comparison.wording import COLUMNS, EVEN, where
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing.formatting import ABSENT

Fields = dict[str, Any]

UNITS = {"seconds": "_s", "rate": "_tok_per_s"}
BOUNDED = ("speedup", "relative_speed", "baseline_ratio", "tokens_per_verify", "acceptance_rate", "draft_efficiency")
DIGITS = 9
"""Significant digits: beyond them, processors differ in how they add up."""
LATEX_COLUMNS = {
    "speedup (95%)": "Speedup (95\\% interval)",
    "tokens / verify": "$\\tau$",
    "acceptance": "Accept.",
    "draft efficiency": "Draft eff.",
    "throughput": "Throughput",
    "TTFT": "TTFT",
    "TPOT": "TPOT",
    "ITL p95": "ITL p95",
    "lossless": "Lossless",
}
SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    EVEN: r"$\approx$",
    "–": "--",
    "µ": r"$\mu$",
}


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
    values |= {f"lossless_{key}": value for key, value in (row.get("lossless") or {}).items()}
    method = {"method": label, "options": setting.settings(run), "made_ready_with": setting.findings(run)}
    return {"table": kind, "name": name, **method, **time, **forced, **warned, **_rounded(values)}


def _column(metric: Metric) -> str:
    """The metric's name, with its unit where that is not part of it."""
    unit = UNITS.get(metric.unit, "")
    has_unit = metric.name.endswith(unit) or "_per_" in metric.name
    return metric.name if has_unit else metric.name + unit


def _rounded(values: Fields) -> Fields:
    return {name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for name, value in values.items()}


def to_latex(comparison: Comparison) -> str:
    """A table of the methods over all requests; needs the package booktabs."""
    columns = {name: title for name, title in LATEX_COLUMNS.items() if _has_values(comparison, name)}
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_caption(comparison)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        f"{' & '.join(['Method', *columns.values()])} \\\\",
        "\\midrule",
        *(_latex_row(label, row, list(columns)) for label, row in comparison.overall.items()),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _has_values(comparison: Comparison, name: str) -> bool:
    return any(COLUMNS[name](row) != ABSENT for row in comparison.overall.values())


def _latex_row(label: str, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    cells = [f"\\texttt{{{latex(label)}}}", *(latex(COLUMNS[name](row)) for name in columns)]
    return f"{' & '.join(cells)} \\\\"


def _caption(comparison: Comparison) -> str:
    text = f"Speculative decoding on {where(comparison)}."
    if any(EVEN in COLUMNS["speedup (95%)"](row) for row in comparison.overall.values()):
        text += f" {EVEN}: no difference from autoregressive decoding is shown."
    return latex(" ".join([text, *machine.of_all(run.fields for run in comparison.runs)]))


def latex(text: str) -> str:
    """Text in which no character is a command."""
    return "".join(SPECIAL.get(character, character) for character in text)
