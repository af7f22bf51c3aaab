"""Several runs as one Markdown report that can be pasted into a pull request."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench_kit.metrics.comparison import Comparison, ComparisonTable
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.series import MethodSeries
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import NO_DIFFERENCE, TOO_FEW
from specbench_kit.metrics.vocabulary import METRICS
from specbench_kit.reports.comparison.look import USUAL, Look
from specbench_kit.reports.comparison.wording import COLUMNS, EVEN, EVEN_NOTE, cautions, headline, speedup_cell, within
from specbench_kit.reports.run.answers import answers_section
from specbench_kit.reports.run.markdown import definitions, setting
from specbench_kit.reports.writing import colocation, deployment, machine, methods, wording
from specbench_kit.reports.writing.formatting import ABSENT, count, share, significant, times
from specbench_kit.reports.writing.markup import code, document, folded, table, warning
from specbench_kit.reports.writing.provenance import provenance
from specbench_kit.reports.writing.values import value_with_interval

Row = Mapping[str, Any]


def render(comparison: Comparison, figures: str = "", look: Look = USUAL) -> str:
    """The report; `figures` is the part with the pictures."""
    sections = [
        _title(comparison),
        _setting(comparison),
        *(_part(part, comparison.by_group, look) for part in comparison.parts if part.kind != "category"),
        differences(comparison),
        answers_section({one.label: run.summary for one in comparison.series for run in _own(one)}),
        colocation.section(comparison.overall, comparison.runs[0].fields.get("deployment")),
        _categories(comparison, look),
        averages(comparison),
        repeats(comparison),
        figures,
        _conditions(comparison),
        _all_numbers(comparison),
        definitions(),
        _runs(comparison),
    ]
    return document(sections)


def _own(series: MethodSeries) -> list[BenchmarkRun]:
    """The one run of a row; answers are not counted over several datasets."""
    return list(series.runs.values()) if len(series.runs) == 1 and not series.is_derived else []


def _title(comparison: Comparison) -> str:
    methods = len([one for one in comparison.series if not one.is_baseline])
    title = f"# {methods} methods on {', '.join(comparison.datasets)}"
    first = warning(machine.of_all(run.fields for run in comparison.runs))
    parts = [title, first, f"**{headline(comparison)}**", warning(cautions(comparison))]
    return "\n\n".join(part for part in parts if part)


def _setting(comparison: Comparison) -> str:
    """Every value that the runs have, which is one unless a comparison was forced or the machine differed."""
    runs = {name: one.runs[name] for one in reversed(comparison.series) for name in one.runs if not one.is_derived}
    datasets = [
        ("dataset", wording.dataset_sentence(runs[name].dataset)) for name in comparison.datasets if name in runs
    ]
    fields = [run.fields for run in comparison.runs]
    rows = [*datasets, *_merged([setting(one) for one in fields]), *wording.warm_up(fields)]
    return "## What was run\n\n" + table(["", ""], rows)


def _conditions(comparison: Comparison) -> str:
    """Options of the methods and the deployments, which are long."""
    fields = [run.fields for run in comparison.runs]
    return "\n\n".join(dict.fromkeys(filter(None, [methods.section(fields), *map(deployment.section, fields)])))


def _merged(settings: Sequence[Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    """One row per name, less those that are not shared, with all its values."""
    values: dict[str, dict[str, None]] = {}
    for name, value in (row for rows in settings for row in rows if row[0] not in ("dataset", "warm-up")):
        values.setdefault(name, {})[value] = None
    return [(name, " / ".join(found)) for name, found in values.items()]


def results(rows: Mapping[str, Row], groups: Mapping[str, Sequence[str]] | None = None, look: Look = USUAL) -> str:
    """The table of methods, or one of each group of them."""
    marked = any(EVEN in speedup_cell(row) for row in rows.values())
    parts = {
        group: {label: rows[label] for label in labels if label in rows} for group, labels in (groups or {}).items()
    }
    columns = {name: COLUMNS[name] for name in look.of()}
    tables = [f"**{group}**\n\n{_methods(part, columns)}" for group, part in parts.items() if part]
    return "\n\n".join(tables or [_methods(rows, columns)]) + (f"\n\n{EVEN_NOTE}" if marked else "")


def _part(part: ComparisonTable, groups: Mapping[str, Sequence[str]], look: Look) -> str:
    finished = max(row["finished"] for row in part.rows.values())
    title = "Results" if part.kind == "overall" else f"Results on {part.name}"
    return f"## {title} ({count(finished)} requests)\n\n{results(part.rows, groups, look)}"


def _categories(comparison: Comparison, look: Look) -> str:
    parts = [part for part in comparison.parts if part.kind == "category"]
    if not parts:
        return ""
    labels = [one.label for one in comparison.series if not one.is_baseline]
    blocks = [_by_category("Speedup (95%)", parts, labels, speedup_cell)]
    blocks.append(_by_category("Acceptance length", parts, labels, COLUMNS["acceptance length"]))
    blocks += [folded(f"All columns: {part.name}", results(part.rows, comparison.by_group, look)) for part in parts]
    return "\n\n".join(["## By category", *blocks])


def _by_category(
    title: str, parts: Sequence[ComparisonTable], labels: Sequence[str], show: Callable[[Row], str]
) -> str:
    rows = [
        (part.name, count(max(row["finished"] for row in part.rows.values())), *_cells(part, labels, show))
        for part in parts
    ]
    return f"{title}:\n\n" + table(["category", "requests", *map(code, labels)], rows)


def _cells(part: ComparisonTable, labels: Sequence[str], show: Callable[[Row], str]) -> list[str]:
    return [show(part.rows[label]) if label in part.rows else ABSENT for label in labels]


def differences(comparison: Comparison) -> str:
    """Every method against the reference, and what the interval shows."""
    against = [(label, row) for label, row in comparison.overall.items() if row.get("verdict")]
    if not against:
        return ""
    changed = any(row.get("baseline_ratio", 1) != 1 for _, row in against)
    rows = [
        (
            code(label),
            f"{times(row['relative_speed'])}{within(row, 'relative_speed')}",
            row["verdict"],
            *([f"{times(row.get('baseline_ratio'))}{within(row, 'baseline_ratio')}"] if changed else []),
            share(row["win_share_against"]),
            share(row.get("win_share")),
            share(row.get("fastest_share")),
        )
        for label, row in against
    ]
    reference = code(comparison.reference)
    header = ["method", f"speed, {reference} = 1 (95%)", "verdict"]
    header += ["baseline / baseline: machine or engine changed"] if changed else []
    header += [
        f"prompts won against {reference}",
        "prompts won against autoregressive",
        "prompts on which it is the fastest",
    ]
    own = comparison.overall[comparison.reference].get("fastest_share")
    note = (
        f"{_basis(against)} The intervals of this table hold together with 95%, whichever method came out as the "
        "reference; what varies by itself is a prompt with all its repeats, or the requests of a batch. "
        f"{NO_DIFFERENCE.capitalize()}: the interval holds 1. {TOO_FEW.capitalize()}: under {FEWEST_UNITS}."
    )
    if own is not None:
        note += f" {reference} itself is the fastest on {share(own)} of prompts."
    return f"## Against {reference}\n\n{table(header, rows)}\n\n{note}"


def _basis(against: Sequence[tuple[str, Row]]) -> str:
    """What the ratios are of: the baselines of separate runs differ."""
    if any(row.get("raw_times") for _, row in against):
        return "Raw time ratios over the same prompts: without baselines, a machine that changed looks like a method."
    return "Ratios of the speedups over each run's own baseline, on the same prompts."


AVERAGES: dict[str, Callable[[Row], str]] = {
    "acceptance length: pooled": lambda row: significant(row["acceptance_length"]),
    "acceptance length: mean of requests": lambda row: significant(row["acceptance_length_request_mean"]),
    "acceptance length: standard deviation": lambda row: significant(row.get("acceptance_length_sd")),
    "acceptance: pooled": lambda row: share(row["acceptance_rate"]),
    "acceptance: mean of requests": lambda row: share(row["acceptance_rate_request_mean"]),
    "speedup: ratio of sums": lambda row: times(row.get("speedup")),
    "speedup: mean of ratios": lambda row: times(row.get("speedup_request_mean")),
    "speedup: ratio of mean tok/s": lambda row: times(row.get("speedup_of_mean_rates")),
}


def averages(comparison: Comparison) -> str:
    """Pooled beside per-request averages, where papers differ on which they report."""
    rows = {
        label: row
        for label, row in comparison.overall.items()
        if row["submitted"] or row["accepted"] or row.get("speedup")
    }
    note = "The field reports either; Spec-Bench's speedup is the ratio of mean tok/s."
    return f"## Pooled and per request\n\n{_methods(rows, AVERAGES)}\n\n{note}" if rows else ""


def _methods(rows: Mapping[str, Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    """A row per method; columns without any value are left out."""
    shown = {name: show for name, show in columns.items() if any(show(row) != ABSENT for row in rows.values())}
    return table(
        ["method", *shown], [(code(label), *(show(row) for show in shown.values())) for label, row in rows.items()]
    )


def repeats(comparison: Comparison) -> str:
    """How far the repeats of the same requests are apart."""
    rows = [
        (code(label), ", ".join(map(times, row["speedup_by_repeat"])), share(row["repeat_spread"]))
        for label, row in comparison.overall.items()
        if row.get("repeats")
    ]
    header = ["method", "speedup of each repeat", "slowest - fastest repeat, of their mean"]
    return f"## Repeats\n\n{table(header, rows)}" if rows else ""


def _all_numbers(comparison: Comparison) -> str:
    rows = [
        (code(metric.name), *(value_with_interval(metric, dict(row)) for row in comparison.overall.values()))
        for metric in METRICS
        if any(metric.name in row for row in comparison.overall.values())
    ]
    return folded("All numbers, with 95% intervals", table(["metric", *map(code, comparison.overall)], rows))


def _runs(comparison: Comparison) -> str:
    """Which row is which run directory, and how the first was made."""
    rows = [
        (code(one.label), name, code(str(run.dataset.get("digest"))[:12]), code(run.name), _started(run))
        for one in comparison.series
        if not one.is_derived
        for name, run in one.runs.items()
    ]
    listing = folded("Runs", table(["method", "dataset", "digest", "folder", "started"], rows))
    return f"{listing}\n\n{provenance(comparison.runs[0].fields)}"


def _started(run: BenchmarkRun) -> str:
    return run.fields.get("started_at") or ABSENT
