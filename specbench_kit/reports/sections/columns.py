"""The columns of the tables that compare methods: each metric's title, unit, cell and symbol in a
paper, once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import UNSET

from specbench_kit.metrics.added import added_metrics
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.statistics import units_for_a_verdict
from specbench_kit.metrics.verdicts import BY_PROMPT, NO_DIFFERENCE, TOO_FEW
from specbench_kit.metrics.vocabulary import (
    DISTRIBUTIONS,
    METRICS,
    NEVER_MISSING,
    Better,
    ColumnHeading,
    MetricValues,
    TableKind,
    Unit,
)
from specbench_kit.reports.document import Block, Cell, Column, Estimate, Folded, Table, code
from specbench_kit.reports.sections import wording
from specbench_kit.reports.writing.formatting import ABSENT, seconds, share

UNDECIDED = (NO_DIFFERENCE, BY_PROMPT, TOO_FEW)
"""Verdicts that name neither side as the faster one."""
MARKS = {NO_DIFFERENCE: "≈", BY_PROMPT: "~", TOO_FEW: "?"}
"""What follows a ratio of speeds that names no winner, by its verdict."""


def mark_words(verdict: str, methods: int) -> str:
    """Return what a mark means in a table that compares so many methods."""
    if verdict == TOO_FEW:
        return f"too few prompts (or batches of them) to tell, {prompts_needed(methods)}"
    return "a tie on a typical prompt" if verdict == NO_DIFFERENCE else verdict


def prompts_needed(methods: int) -> str:
    """Return how many prompts can show a difference at all in a table that compares so many
    methods.
    """
    enough = units_for_a_verdict(methods)
    return (
        f"where {methods} methods need at least {enough}" if methods > 1 else f"fewer than {enough}"
    )


@dataclass(frozen=True, slots=True)
class MetricColumn(Column):
    """A column of one metric, given by its path in a row of metrics.

    `symbol` is its title in a paper and `meaning` what the caption says of it. `show` makes cells that are more than
    the metric's value.
    """

    metric: str = ""
    symbol: str = ""
    meaning: str = ""
    better: Better = "higher"
    leads: Sequence[TableKind] = ()
    show: Callable[[MetricValues], Cell] | None = None

    def value(self, row: MetricValues) -> float | None:
        """Return the metric's value, or None if the row has none."""
        name, _, part = self.metric.partition(".")
        if not part:
            return row.value(name)
        value: float | None = getattr(getattr(row, name), part)
        return value

    def cell(self, row: MetricValues) -> Cell:
        """Return the cell of a table on a page or a terminal."""
        return self.show(row) if self.show else self.value(row)

    def narrow(self) -> "MetricColumn":
        """Return the column with a title in several lines, for a terminal."""
        return replace(
            self,
            title=self.title.replace(" (", "\n(")
            if " (" in self.title
            else "\n".join(self.title.split()),
        )


def speedup_mark(row: MetricValues) -> str:
    """Return the mark behind a speedup that is not shown to differ from autoregressive decoding, by
    its verdict.
    """
    mark = MARKS.get(row.speedup_verdict or "", "") if isinstance(row, MethodRow) else ""
    return f" {mark}" if mark else ""


def marks_note(rows: Iterable[MethodRow]) -> str:
    """Return what the marks behind the speedups of these rows mean; empty if none of them has
    one.
    """
    verdicts = [row.speedup_verdict for row in rows if row.speedup_verdict]
    meanings = [
        f"{mark}: {mark_words(verdict, len(verdicts))}"
        for verdict, mark in MARKS.items()
        if verdict in verdicts
    ]
    return f"Beside autoregressive decoding {'; '.join(meanings)}." if meanings else ""


def estimate_of(row: MetricValues, metric: str, mark: str = "") -> Estimate:
    """Return a metric's value with its interval, if that is known, and a mark behind both."""
    return Estimate(row.value(metric), row.bounds(metric), mark)


def _in_all_cell(row: MetricValues) -> Estimate:
    return estimate_of(row, "speedup")


def _speedup_cell(row: MetricValues) -> Estimate:
    return estimate_of(row, "typical_speedup", speedup_mark(row))


def _wdt_cell(row: MetricValues) -> str:
    return ABSENT if row.wdt_share is None else f"{seconds(row.wdt)} ({share(row.wdt_share)})"


def _lossless_cell(row: MetricValues) -> str:
    if not isinstance(row, MethodRow):
        return ABSENT
    if row.sampling_consistent is not UNSET:
        return wording.CONSISTENT[row.sampling_consistent, row.lossy]
    return (
        ", ".join(wording.lossless_parts(row.lossless))
        if row.lossless and row.lossless.compared
        else ABSENT
    )


CELLS: Mapping[str, Callable[[MetricValues], Cell]] = {
    "speedup": _in_all_cell,
    "typical_speedup": _speedup_cell,
    "wdt_share": _wdt_cell,
}
"""Cells that are more than the metric's value."""
FIRST = ("typical_speedup", "speedup", "headroom", "throughput")
"""The metrics whose columns stand first; the others follow as the vocabulary has them."""


def _column(metric: str, unit: Unit, heading: ColumnHeading) -> MetricColumn:
    return MetricColumn(
        heading.title,
        unit,
        f"{metric}.{heading.part}" if heading.part else metric,
        heading.symbol,
        heading.meaning,
        heading.better,
        heading.leads,
        CELLS.get(metric),
    )


def _all_columns() -> Iterator[MetricColumn]:
    by_name = {metric.name: metric for metric in METRICS}
    for name in dict.fromkeys((*FIRST, *by_name)):
        metric = by_name[name]
        if metric.heading:
            yield _column(name, metric.unit, metric.heading)
    for distribution in DISTRIBUTIONS:
        for heading in distribution.headings:
            yield _column(distribution.name, "seconds", heading)
    yield LOSSLESS


LOSSLESS = MetricColumn(
    "lossless", "count", "lossless", "Lossless", leads=("comparison", "paper"), show=_lossless_cell
)
COLUMNS: Mapping[str, MetricColumn] = {column.title: column for column in _all_columns()}
"""Every column that a table of methods can have, by its title."""
SPEEDUP = COLUMNS["typical speedup (95%)"]
"""The one speedup of a row, by which the order of rows, the star, figures and verdicts go."""
IN_ALL = COLUMNS["speedup in all (95%)"]


def columns_by_title() -> dict[str, MetricColumn]:
    """Return every column that a table of methods can have, those of other packages' metrics last,
    by title.
    """
    added = [_added_column(name) for name in added_metrics.all()]
    others = {column.title: column for column in added if column.title not in COLUMNS}
    return {**COLUMNS, **others}


def added_columns(rows: Iterable[MetricValues]) -> list[MetricColumn]:
    """Return the columns of the metrics that other packages brought to these rows.

    Where such a package is no longer installed, its metric's name is the title.
    """
    names = (name for row in rows if row.added is not UNSET for name in row.added)
    return [_added_column(name) for name in dict.fromkeys(names)]


def _added_column(name: str) -> MetricColumn:
    kind = added_metrics.all().get(name)

    def cell(row: MetricValues) -> Cell:
        known = row.added is not UNSET and name in row.added
        return estimate_of(row, name) if known else ABSENT

    if kind is None:
        return MetricColumn(name, "number", name, name, better="neither", show=cell)
    return MetricColumn(
        kind.title, kind.unit, name, kind.title, kind.definition, kind.better, show=cell
    )


def leading_columns(*tables: TableKind) -> list[MetricColumn]:
    """Return the columns that one of these tables shows at once."""
    return [column for column in COLUMNS.values() if not set(tables).isdisjoint(column.leads)]


def cells_of(row: MetricValues, columns: Iterable[MetricColumn]) -> list[Cell]:
    """Return the cells of a row of metrics in these columns."""
    return [column.cell(row) for column in columns]


def method_table(rows: Mapping[str, MetricValues], columns: Iterable[MetricColumn]) -> Table:
    """Return a table with a row for each label in `rows`, less the columns in which no row has a
    value.
    """
    columns = list(columns)
    cells = [[code(label), *cells_of(row, columns)] for label, row in rows.items()]
    return Table(("method", *columns), cells).without_empty_columns()


def all_numbers(rows: Mapping[str, MetricValues]) -> Block:
    """Return a table of every metric of these rows with its interval, to open on a click."""
    lines = []
    for name, unit in ((metric.name, metric.unit) for metric in METRICS):
        if name in NEVER_MISSING or any(row.value(name) is not None for row in rows.values()):
            lines.append(
                [code(name), *(value_with_interval(name, unit, row) for row in rows.values())]
            )
    lines += [
        [code(column.metric), *(column.text(column.cell(row)) for row in rows.values())]
        for column in added_columns(rows.values())
    ]
    return Folded("All numbers, with 95% intervals", [Table(("metric", *map(code, rows)), lines)])


def value_with_interval(metric: str, unit: Unit, row: MetricValues) -> str:
    """Return a metric's value, followed by its interval if that has any width."""
    return Column(metric, unit).text(estimate_of(row, metric))
