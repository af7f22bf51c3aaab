"""A comparison's tables for other programs (CSV) and for papers (LaTeX)."""

import re
from collections.abc import Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import asdict

from specbench_kit.core.plain_text import CsvCell, CsvRow, csv_text
from specbench_kit.metrics import setting
from specbench_kit.metrics.result import Comparison, ComparisonTable
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.verdicts import NO_DIFFERENCE
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS
from specbench_kit.reports import render_latex
from specbench_kit.reports.comparison.report import USUAL, Look
from specbench_kit.reports.comparison.wording import options_note, short_labels, where
from specbench_kit.reports.document import Cell, Column, Estimate, Table, code
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.columns import IN_ALL, LOSSLESS, SPEEDUP, MetricColumn
from specbench_kit.reports.writing.formatting import ABSENT

CSV_DIGITS = 9
"""Significant digits of numbers in CSV: beyond them, processors differ in how they add up."""
CSV_UNITS = {"seconds": "_s", "rate": "_tok_per_s"}


def to_csv(comparison: Comparison) -> str:
    """Return one line per table and method, with every metric; what has no value is left empty."""
    return csv_text(csv_rows(comparison))


def csv_rows(comparison: Comparison) -> list[CsvRow]:
    """Return one row per table and method, with every metric; what has no value is None."""
    return [
        _rounded(_record(comparison, part, label, row))
        for part in comparison.parts
        for label, row in part.rows.items()
    ]


def _rounded(record: CsvRow) -> CsvRow:
    """Return the record with all its numbers to `CSV_DIGITS` significant digits."""
    return {
        name: float(f"{value:.{CSV_DIGITS}g}") if isinstance(value, float) else value
        for name, value in record.items()
    }


def _record(comparison: Comparison, part: ComparisonTable, label: str, row: MethodRow) -> CsvRow:
    series = next(series for series in comparison.series if series.label == label)
    runs = [run.fields for run in series.runs.values()]
    record: dict[str, CsvCell] = {
        "table": part.kind,
        "name": part.name,
        "method": label,
        "spec": series.spec,
        "options": setting.describe_options(runs[0]),
        "made_ready_with": setting.describe_inputs(runs[0]),
        "time_kind": runs[0].time_kind,
        "deployment": runs[0].deployment_name,
        "forced": bool(comparison.overruled),
        "reference": comparison.reference,
        "warnings": " ".join(machine.warnings(*runs)) or None,
    }
    for metric in METRICS:
        unit = CSV_UNITS.get(metric.unit, "")
        names_unit = metric.name.endswith(unit) or "_per_" in metric.name
        record[metric.name if names_unit else metric.name + unit] = row.value(metric.name)
    for name in (metric.name for metric in METRICS if metric.traits.bounded):
        record[f"{name}_low"], record[f"{name}_high"] = row.bounds(name) or (None, None)
    for name, value in {} if row.added is UNSET else row.added.items():
        record[name] = value
        record[f"{name}_low"], record[f"{name}_high"] = row.bounds(name) or (None, None)
    record["verdict"] = row.verdict
    for name in (one.name for one in DISTRIBUTIONS):
        record |= {
            f"{name}_{statistic}_s": value
            for statistic, value in asdict(getattr(row, name)).items()
        }
    record |= {f"{phase}_s": value for phase, value in asdict(row.phase_seconds).items()}
    record["sampling_consistent"] = (
        None if row.sampling_consistent is UNSET else row.sampling_consistent
    )
    lossless = asdict(row.lossless) if row.lossless else {}
    return record | {f"lossless_{key}": value for key, value in lossless.items()}


def to_latex(comparison: Comparison, look: Look = USUAL) -> str:
    """Return a table of the methods over all requests, from fast to slow."""
    comparison = comparison.from_fast_to_slow()
    rows = comparison.overall
    columns = [
        column for column in look.table_columns("paper") if _has_value(column, rows.values())
    ]
    labels = short_labels(comparison)
    cells: list[list[Cell]] = [[code(labels[label])] for label in rows]
    for column in columns:
        best = _best(comparison, column)
        for line, (label, row) in zip(cells, rows.items(), strict=True):
            bounds = row.bounds(column.metric) if column in (SPEEDUP, IN_ALL) else None
            estimate = Estimate(column.value(row), bounds, best=label in best)
            line.append(column.cell(row) if column is LOSSLESS else estimate)
    table = Table(("Method", *(Column(column.symbol, column.unit) for column in columns)), cells)
    slug = re.sub(r"[^a-z0-9]+", "-", f"skit-{'-'.join(comparison.datasets)}".lower()).strip("-")
    options = options_note(comparison).replace("options", "Options", 1)
    note = " ".join(f"{part}." for part in (where(comparison), options) if part)
    return render_latex.render(table, _caption(comparison, columns), slug, note)


def _has_value(column: MetricColumn, rows: Iterable[MethodRow]) -> bool:
    return any(column.text(column.cell(row)) != ABSENT for row in rows)


def _best(comparison: Comparison, column: MetricColumn) -> list[str]:
    """Return the rows in bold: the best that can be deployed and are lossless, and all speedups
    that may be best.
    """
    rows = comparison.overall
    if column is LOSSLESS or column.better == "neither":
        return []
    barred = {series.label for series in comparison.series if series.is_bound}
    if column in (SPEEDUP, IN_ALL):
        even = [
            label
            for label, row in rows.items()
            if row.verdict == NO_DIFFERENCE and label not in barred
        ]
        return [
            label for label in (comparison.reference, *even) if rows[label].value(column.metric)
        ]
    barred |= {label for label, row in rows.items() if row.lossless and row.lossless.errors}
    values = {label: column.value(row) for label, row in rows.items() if label not in barred}
    choose = min if column.better == "lower" else max
    best = choose((value for value in values.values() if value is not None), default=None)
    return [label for label, value in values.items() if value is not None and value == best]


def _caption(comparison: Comparison, columns: Sequence[MetricColumn]) -> str:
    meanings = {
        column.symbol.partition(" p")[0]: column.meaning for column in columns if column.meaning
    }
    parts = [
        f"Speculative decoding on {', '.join(comparison.datasets)}.",
        "; ".join(f"{symbol}: {meaning}" for symbol, meaning in meanings.items()) + "."
        if meanings
        else "",
        "Brackets: 95% intervals." if {SPEEDUP, IN_ALL} & {*columns} else "",
        "Bold: the best lossless, deployable method and all statistical ties.",
        *machine.warnings(*(run.fields for run in comparison.runs)),
    ]
    return " ".join(filter(None, parts))
