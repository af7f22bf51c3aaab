"""The report on several runs side by side, section by section, in the columns and the look that the
user chose.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.metrics.result import Comparison, ComparisonTable
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.metrics.verdicts import NO_DIFFERENCE, TOO_FEW
from specbench_kit.metrics.vocabulary import TableKind
from specbench_kit.reports.comparison.wording import (
    break_even_words,
    cautions,
    decision_words,
    power_words,
    process_words,
    reachable_gap,
)
from specbench_kit.reports.document import (
    Block,
    Blocks,
    Cell,
    Column,
    Document,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.run.report import setting as run_setting
from specbench_kit.reports.run.sections import (
    answers_section,
    definitions,
    thinking_compared,
    tool_calls_compared,
)
from specbench_kit.reports.sections import (
    colocation,
    deployment,
    headlines,
    machine,
    methods,
    wording,
)
from specbench_kit.reports.sections.columns import (
    COLUMNS,
    SPEEDUP,
    MetricColumn,
    added_columns,
    all_numbers,
    columns_by_title,
    estimate_of,
    leading_columns,
    marks_note,
    method_table,
)
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.writing.formatting import ABSENT, count, share, times

Size = Literal["screen", "column", "page"]
"""The size of figures: for reading on a screen, or for one or both columns of a paper."""


@dataclass(frozen=True, slots=True)
class Look:
    """`columns` are the titles of the tables' columns, all if there are none; a `bare` figure has
    no title.
    """

    columns: Sequence[str] = ()
    bare: bool = False
    size: Size = "screen"

    def table_columns(self, leads: TableKind | None = None) -> list[MetricColumn]:
        """Return the chosen columns; else those that lead this table, or all columns if none is
        named.
        """
        if self.columns:
            known = columns_by_title()
            return [known[title] for title in self.columns]
        return leading_columns(leads) if leads else list(COLUMNS.values())


USUAL = Look()


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the titles of columns by their `short_names`, separated by commas; an unknown name is
    an error.
    """
    titles = short_names()
    names = [name.strip().lower().replace("_", "-") for name in text.split(",") if name.strip()]
    for name in names:
        if name not in titles:
            hint = did_you_mean(name, titles)
            raise SkitError(f"--columns: unknown column '{name}'{hint}; known: {', '.join(titles)}")
    return tuple(dict.fromkeys(titles[name] for name in names))


def short_names() -> dict[str, str]:
    """Return the titles of columns by their names on the command line: `speedup`,
    `acceptance-length`, `itl-p95`.
    """
    titles = columns_by_title()
    return {title.partition(" (")[0].lower().replace(" ", "-"): title for title in titles}


def build(comparison: Comparison, figures: Blocks = (), look: Look = USUAL) -> Document:
    """Return the report; `figures` are the blocks of the section with the pictures."""
    comparison = comparison.from_fast_to_slow()
    number = sum(not series.is_baseline for series in comparison.series)
    fields = [run.fields for run in comparison.runs]
    # Answers are not added up over several datasets.
    judged = {
        series.label: run.summary
        for series in comparison.series
        if len(series.runs) == 1 and not series.is_derived
        for run in series.runs.values()
    }
    deployments = [deployment.section(run) for run in fields]
    folded = comparison.folded
    sections = [results(part, look, folded) for part in comparison.parts if part.kind != "category"]
    # What is compared stands in one picture before any table; the others follow under their
    # heading.
    first = next((block for block in figures if isinstance(block, Figure)), None)
    others = [block for block in figures if block is not first]
    if not any(isinstance(block, Figure | Folded) for block in others):
        others = []
    return Document.of(
        f"{number} methods on {', '.join(comparison.datasets)}",
        caution(machine.warnings(*fields), severe=True),
        [
            Paragraph(f"**{headlines.of_comparison(comparison)}**"),
            *paragraphs(
                break_even_words(comparison), decision_words(comparison), power_words(comparison)
            ),
            *caution(cautions(comparison)),
        ],
        [first] if first else [],
        *sections,
        setting(comparison),
        paragraphs(reachable_gap(comparison)),
        differences(comparison),
        answers_section(judged),
        thinking_compared(judged),
        tool_calls_compared(judged),
        colocation.section(comparison.overall, fields[0].deployment),
        categories(comparison, look),
        averages(comparison),
        repeats(comparison),
        others,
        methods.section(fields, [run.summary for run in comparison.runs]),
        *(
            section
            for index, section in enumerate(deployments)
            if section not in deployments[:index]
        ),
        [all_numbers(comparison.overall), definitions()],
        runs(comparison),
        provenance(fields[0]),
    )


AVERAGES = (
    MetricColumn("acceptance length: pooled", "number", "acceptance_length"),
    MetricColumn("acceptance length: mean of requests", "number", "acceptance_length_request_mean"),
    MetricColumn("acceptance length: standard deviation", "number", "acceptance_length_sd"),
    MetricColumn("acceptance: pooled", "share", "acceptance_rate"),
    MetricColumn("acceptance: mean of requests", "share", "acceptance_rate_request_mean"),
    MetricColumn("speedup: ratio of sums", "times", "speedup"),
    MetricColumn("speedup: mean of ratios", "times", "speedup_request_mean"),
    MetricColumn("speedup: ratio of mean tok/s", "times", "speedup_of_mean_rates"),
)


def setting(comparison: Comparison) -> Blocks:
    """Return every value of the runs' settings: one, unless a comparison was forced or the machines
    differ.
    """
    datasets = {
        name: run
        for series in reversed(comparison.series)
        if not series.is_derived
        for name, run in series.runs.items()
    }
    fields = [run.fields for run in comparison.runs]
    values: dict[str, dict[str, None]] = {}
    for run in fields:
        for name, value in run_setting(run):
            if name not in ("dataset", "warm-up"):
                values.setdefault(name, {})[value] = None
    rows = [
        ("dataset", wording.dataset_sentence(datasets[name].fields.dataset))
        for name in comparison.datasets
        if name in datasets
    ]
    rows += [(name, " / ".join(texts)) for name, texts in values.items()]
    return [Heading("What was run"), facts([*rows, *wording.warm_up(fields)])]


def results(part: ComparisonTable, look: Look, folded: Collection[str]) -> Blocks:
    """Return the tables of all requests, or of one dataset."""
    finished = max(row.finished or 0 for row in part.rows.values())
    title = "Results" if part.kind == "overall" else f"Results on {part.name}"
    heading = Heading(f"{title} ({count(finished)} requests)")
    return [heading, *_method_tables(part.rows, look, folded)]


def _method_tables(
    rows: Mapping[str, MethodRow], look: Look, folded: Collection[str] = ()
) -> Blocks:
    """Return the table of methods, and the folded rows and other columns to open on a click."""
    first = look.table_columns("comparison")
    if not look.columns:
        first += added_columns(rows.values())
    others = (
        [] if look.columns else [column for column in look.table_columns() if column not in first]
    )
    further = method_table(rows, others)
    more = [Folded("More columns", [further])] if further.columns[1:] else []
    tables = with_folded_rows(method_table(rows, first), folded)
    return [*tables, *more, *paragraphs(marks_note(rows.values()))]


def with_folded_rows(table: Table, folded: Collection[str]) -> Blocks:
    """Return a table of methods less the rows with these labels, and a table of those to open on a
    click, whose title says how many there are.
    """
    names = {*map(code, folded)}
    hidden = [row for row in table.rows if str(row[0]) in names]
    if not hidden:
        return [table]
    shown = [row for row in table.rows if row not in hidden]
    rows = f"{len(hidden)} {'row' if len(hidden) == 1 else 'rows'}"
    listed = ", ".join(dict.fromkeys(_without_options(str(row[0])) for row in hidden))
    title = f"More: {rows} that few readers look for ({listed})"
    return [Table(table.columns, shown), Folded(title, [Table(table.columns, hidden)])]


def _without_options(label: str) -> str:
    """Return the code of a label without the options in brackets."""
    name, _, options = label.partition(" (")
    return name + ("`" if options else "")


def categories(comparison: Comparison, look: Look) -> Blocks:
    """Return speedup and acceptance length by category, and all other columns to open on a
    click.
    """
    parts = [part for part in comparison.parts if part.kind == "category"]
    if not parts:
        return []
    folded = comparison.folded
    labels = [
        series.label
        for series in comparison.series
        if not series.is_baseline and series.label not in folded
    ]
    blocks: list[Block] = [Heading("By category")]
    for title, column in (
        ("Typical speedup (95%)", SPEEDUP),
        ("Acceptance length", COLUMNS["acceptance length"]),
    ):
        rows: list[list[Cell]] = []
        for part in parts:
            finished = max(row.finished or 0 for row in part.rows.values())
            cells = [
                column.text(column.cell(part.rows[label])) if label in part.rows else ABSENT
                for label in labels
            ]
            rows.append([part.name, finished, *cells])
        header: list[Column | str] = ["category", Column("requests", "count")]
        header += [Column(code(label), column.unit) for label in labels]
        blocks += [Paragraph(f"{title}:"), Table(header, rows)]
    columns = look.table_columns()
    return blocks + [
        Folded(
            f"All columns: {part.name}",
            [
                method_table(
                    part.rows,
                    columns if look.columns else [*columns, *added_columns(part.rows.values())],
                )
            ],
        )
        for part in parts
    ]


def differences(comparison: Comparison) -> Blocks:
    """Return the comparison of every method with the reference, and what its interval shows."""
    against = {label: row for label, row in comparison.overall.items() if row.verdict}
    if not against:
        return []
    reference = code(comparison.reference)
    columns = [
        Column(f"speed on a typical prompt, {reference} = 1 (95%)", "times"),
        Column("verdict"),
        Column("baseline / baseline: machine or engine changed", "times"),
        Column(f"requests won against {reference}", "share"),
        Column("requests won against autoregressive", "share"),
        Column("requests on which it is the fastest", "share"),
    ]
    rows: list[list[Cell]] = [
        [
            estimate_of(row, "typical_relative_speed"),
            row.verdict,
            estimate_of(row, "baseline_ratio"),
            row.win_share_against,
            row.win_share,
            row.fastest_share,
        ]
        for row in against.values()
    ]
    if all(row.baseline_ratio in (None, 1) for row in against.values()):
        columns = columns[:2] + columns[3:]
        rows = [cells[:2] + cells[3:] for cells in rows]
    if any(row.raw_times for row in against.values()):
        basis = "Ratios of raw times over the same prompts: without baselines, a changed machine looks like a method."
    else:
        basis = "Ratios of the speedups over each run's own baseline, on the same prompts."
    note = (
        f"{basis} A verdict goes by the typical prompt, on which no prompt counts for more because it took long or "
        "because the machine was held up: at most 5% of tables of equal methods have a false one, whichever method is "
        "the reference. The independent units are prompts with all their repeats, or batches of requests. "
        f"{NO_DIFFERENCE.capitalize()}: the interval contains 1. {TOO_FEW.capitalize()}: fewer than {FEWEST_UNITS} for "
        "one comparison, more for many."
    )
    if lasting := process_words(comparison):
        note += f" {lasting}"
    fastest_share = comparison.overall[comparison.reference].fastest_share
    if fastest_share is not None:
        note += f" {reference} itself is the fastest on {share(fastest_share)} of requests."
    labelled = [[code(label), *cells] for label, cells in zip(against, rows, strict=True)]
    tables = with_folded_rows(Table(("method", *columns), labelled), comparison.folded)
    return [Heading(f"Against {reference}"), *tables, Paragraph(note)]


def averages(comparison: Comparison) -> Blocks:
    """Return pooled and per-request averages, since papers differ in which they report."""
    rows = {
        label: row
        for label, row in comparison.overall.items()
        if row.submitted or row.accepted or row.speedup
    }
    note = "Papers report either; Spec-Bench's speedup is the ratio of mean tok/s."
    return (
        [
            Heading("Pooled and per request"),
            *with_folded_rows(method_table(rows, AVERAGES), comparison.folded),
            Paragraph(note),
        ]
        if rows
        else []
    )


def repeats(comparison: Comparison) -> Blocks:
    """Return how far the repeats of the same requests are apart."""
    rows = [
        (code(label), ", ".join(map(times, row.speedup_by_repeat)), row.repeat_spread)
        for label, row in comparison.overall.items()
        if row.repeats
    ]
    spread = Column("(slowest - fastest repeat) / mean", "share")
    return (
        [Heading("Repeats"), Table(("method", "speedup of each repeat", spread), rows)]
        if rows
        else []
    )


def runs(comparison: Comparison) -> Blocks:
    """Return the run directory of every row."""
    rows = [
        (
            code(series.label),
            name,
            code(str(run.fields.dataset.digest)[:12]),
            code(run.name),
            run.fields.started_at or ABSENT,
        )
        for series in comparison.series
        if not series.is_derived
        for name, run in series.runs.items()
    ]
    return [Folded("Runs", [Table(("method", "dataset", "digest", "folder", "started"), rows)])]
