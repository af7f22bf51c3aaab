"""A simulation, or a search for capacity, on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import (
    Block,
    Cell,
    Column,
    Note,
    Table,
    caution,
    paragraphs,
)
from specbench_kit.reports.sections.cautions import foreign_files, setting_cautions
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.serving.figures import (
    AXES,
    Interval,
    SearchedRow,
    SeedFigures,
    SimulatedRow,
    varied,
)
from specbench_kit.studies.serving import tails, wording
from specbench_kit.studies.serving.report import (
    SERVERS,
    FigureColumn,
    point_cells,
    servers_of,
)
from specbench_kit.studies.serving.summary import (
    CapacitySummary,
    ServingDescription,
    ServingSummary,
    SimulationSummary,
    latency_groups,
)
from specbench_kit.studies.serving.wording import estimate, seeds_in_words

if TYPE_CHECKING:
    from rich.console import Console

SIMULATED: Sequence[FigureColumn[SeedFigures]] = (
    FigureColumn("violations (95%)", "share", lambda figures: figures.overall.violation_rate),
    FigureColumn("tokens/s", "number", lambda figures: figures.overall.throughput),
    FigureColumn("goodput\n(tokens/s)", "number", lambda figures: figures.overall.goodput),
    FigureColumn("acceptance\nlength", "number", lambda figures: figures.overall.acceptance_length),
    FigureColumn("busy", "share", lambda figures: figures.server.utilisation),
)
AXIS_TITLES = {
    "slo": "promised speed",
    "slo_scale": "SLO\nscale",
    "estimator_factor": "estimate\nfactor",
    "estimator_noise": "estimate\nnoise",
    "guard_s": "guard\n(s)",
}
NO_BREAK = "\N{NO-BREAK SPACE}"
LATENCIES = ("response", "TTFT", "ICL")
MOST_LATENCIES = 12
"""Rows up to which the terminal shows latencies; the report shows all."""
FIRST_SERVER_COLUMNS = 4
"""Figures of each server of a pool on the terminal: how busy it is, its shares, and its batches."""
MOST_COLUMNS = 6
"""Columns that fit into 80 characters next to the series; the report shows all."""


def print_serving(console: "Console", run: ServingDescription, summary: ServingSummary) -> None:
    """Print a row per point, the published numbers if there are any, and the cautions."""
    config = run.config
    setting = (
        f"{seeds_in_words(config)} of {config.duration_s:g} simulated seconds · {time_kind(run)}"
    )
    if isinstance(summary, SimulationSummary) and "slo" not in varied(summary.rows):
        setting += f" · promised: {'; '.join(map(slo_in_words, config.slo))}"
    results = (
        _simulated(summary.rows) if isinstance(summary, SimulationSummary) else _capacities(summary)
    )
    blocks: list[Block] = [
        *foreign_files(run),
        *paragraphs(*(f"**{line}**" for line in wording.headlines(run, summary))),
        Note(setting),
        results,
        *map(Note, wording.busy_note(summary)),
        *map(Note, wording.plain_note(run, summary)),
        *_latencies(summary.rows),
        *_tails(run, summary),
        *_servers(summary.rows),
    ]
    if summary.published:
        blocks.append(_published(run, summary.published))
    blocks += paragraphs(*map(wording.guard_sentence, summary.guards))
    blocks += caution(
        [*setting_cautions(run), *wording.acceptance_cautions(run), *wording.cautions(summary)]
    )
    render_terminal.show(console, blocks)


def _tails(run: ServingDescription, summary: ServingSummary) -> list[Block]:
    """Return the gaps between tokens with speculation and without it; nothing if the table would be
    long.
    """
    table = tails.tail_table(run, summary)
    is_short = table is not None and 0 < len(table.rows) <= MOST_LATENCIES
    return [
        *([table] if table is not None and is_short else []),
        *paragraphs(*tails.tail_sentences(run, summary)),
    ]


def _simulated(rows: Sequence[SimulatedRow]) -> Table:
    """Return a row per point; only the first figure has its interval."""
    axes = [axis for axis in AXES if axis == "devices" or axis in varied(rows)]
    columns = SIMULATED[: MOST_COLUMNS - len(axes)]
    cells: list[list[Cell]] = []
    for row in rows:
        first, *others = (column.of(row.figures) for column in columns)
        means = [other.mean if other else None for other in others]
        cells.append([*point_cells(row, axes), estimate(first), *means])
    return Table(("system", *_axis_columns(axes), *columns), cells)


def _capacities(summary: CapacitySummary) -> Table:
    rows = summary.rows
    axes = [axis for axis in AXES if axis == "slo" or axis in varied(rows)]
    in_devices = summary.unit == "devices"
    title = "capacity (95%)" if in_devices else f"capacity\n({summary.unit})"
    columns = [Column(title, "count" if in_devices else "number")][: MOST_COLUMNS - len(axes)]
    cells = [[*point_cells(row, axes), estimate(row.capacity)] for row in rows]
    return Table(("system", *_axis_columns(axes), *columns), cells)


def _axis_columns(axes: Sequence[str]) -> list[Column]:
    return [Column(AXIS_TITLES.get(axis, axis), "count") for axis in axes]


def _latencies(rows: Sequence[SimulatedRow | SearchedRow]) -> list[Block]:
    """Return median, 95th and 99th percentile of what users wait for, by class; nothing if the
    table would be long.
    """
    axes = varied(rows)
    by_class = any(len(latency_groups(row)) > 1 for row in rows)
    cells: list[list[Cell]] = []
    for row in rows:
        for name, group in latency_groups(row).items():
            waited = (group.response_s, group.ttft_s, group.icl_s)
            cells.append(
                [*point_cells(row, axes), *([name] if by_class else []), *map(_percentiles, waited)]
            )
    if not 0 < len(cells) <= MOST_LATENCIES:
        return []
    titles = [f"{title} (s)\n{NO_BREAK.join(('p50', 'p95', 'p99'))}" for title in LATENCIES]
    classes = ["class"] if by_class else []
    return [
        Table(("system", *(AXIS_TITLES.get(axis, axis) for axis in axes), *classes, *titles), cells)
    ]


def _servers(rows: Sequence[SimulatedRow | SearchedRow]) -> list[Block]:
    """Return what each server of a pool does; nothing if there is none, or the table would be
    long.
    """
    axes = varied(rows)
    cells: list[list[Cell]] = []
    for row in rows:
        for name, server in servers_of(row).items():
            figures = (column.of(server) for column in SERVERS[:FIRST_SERVER_COLUMNS])
            cells.append(
                [
                    *point_cells(row, axes),
                    name,
                    *(figure.mean if figure else None for figure in figures),
                ]
            )
    if not 0 < len(cells) <= MOST_LATENCIES:
        return []
    return [
        Table(("system", *_axis_columns(axes), "server", *SERVERS[:FIRST_SERVER_COLUMNS]), cells)
    ]


def _percentiles(times: Percentiles[Interval] | None) -> str:
    """Return three numbers that a narrow terminal keeps in one line, since long names are what it
    can break.
    """
    values = (
        [None] * 3 if times is None else [value.mean for value in (times.p50, times.p95, times.p99)]
    )
    return NO_BREAK.join(map(significant, values))


def _published(run: ServingDescription, pairs: Sequence[ComparedNumber]) -> Table:
    against = run.preset.against if run.preset else ""
    ratio_titles = [f"{against} /\nsystem", "ratio of\nratios"] if against else []
    numbers = ["published", "simulated", "simulated /\npublished", *ratio_titles]
    cells = []
    for pair in pairs:
        series, point, figure, published, _, ratio, _, simulated_ratio, ratio_of_ratios = (
            wording.published_cells(pair)
        )
        subject = f"{series}, {point}" if pair.where else series
        simulated = Column(unit=wording.unit_of(pair)).text(
            pair.simulated.mean if pair.simulated else None
        )
        cells.append(
            [subject, figure, published, simulated, ratio, simulated_ratio, ratio_of_ratios][
                : 2 + len(numbers)
            ]
        )
    return Table(("system", "metric", *(Column(title, "number") for title in numbers)), cells)
