"""A simulation, or a search for capacity, on the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.serving_rows import AXES, look_up, mean_of, varied
from specbench_kit.reports import render_terminal
from specbench_kit.reports.document import (
    Block,
    Column,
    Note,
    Row,
    RunFile,
    Summary,
    Table,
    caution,
    paragraphs,
)
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.serving import wording
from specbench_kit.reports.serving.report import ServingColumn, latency_groups, point_cells
from specbench_kit.reports.serving.wording import estimate, seeds_in_words
from specbench_kit.reports.writing.formatting import ABSENT, significant
from specbench_kit.runs.document import RunDescription

if TYPE_CHECKING:
    from rich.console import Console

SIMULATED = (
    ServingColumn("violations (95%)", "share", "figures.overall.violation_rate"),
    ServingColumn("tokens/s", "number", "figures.overall.throughput"),
    ServingColumn("goodput\n(tokens/s)", "number", "figures.overall.goodput"),
    ServingColumn("acceptance\nlength", "number", "figures.overall.acceptance_length"),
    ServingColumn("busy", "share", "figures.server.utilisation"),
)
AXIS_TITLES = {
    "slo": "promised speed",
    "slo_scale": "SLO\nscale",
    "estimator_factor": "estimate\nfactor",
    "estimator_noise": "estimate\nnoise",
    "guard_s": "guard\n(s)",
}
LATENCIES = {"response": "response_s", "TTFT": "ttft_s", "ITL": "itl_s"}
MOST_LATENCIES = 12
"""Rows up to which the terminal shows latencies; the report shows all."""
MOST_COLUMNS = 6
"""Columns that fit into 80 characters next to the series; the report shows all."""


def print_serving(console: "Console", run: RunFile, summary: Summary) -> None:
    """Print a row per point, the published numbers if there are any, and the cautions."""
    described = RunDescription.read(run)
    config = run["config"]
    setting = f"{seeds_in_words(config)} of {config['duration_s']:g} simulated seconds · {time_kind(described)}"
    if "devices" in summary["rows"][0] and "slo" not in varied(summary["rows"]):
        setting += f" · promised: {'; '.join(map(slo_in_words, config['slo']))}"
    blocks: list[Block] = [Note(setting), _results(run, summary), *_latencies(summary)]
    if summary.get("published"):
        blocks.append(_published(run, summary))
    blocks += paragraphs(*wording.winners(run, summary), *map(wording.guard_sentence, summary["guards"]))
    blocks += caution([*setting_cautions(described), *wording.acceptance_cautions(run), *wording.cautions(summary)])
    render_terminal.show(console, blocks)


def _results(run: RunFile, summary: Summary) -> Table:
    """Return a row per point; only the first figure has its interval."""
    rows = summary["rows"]
    always = "slo" if "devices" not in rows[0] else "devices"
    axes = [axis for axis in AXES if axis == always or axis in varied(rows)]
    columns: Sequence[ServingColumn] = SIMULATED
    unit = wording.capacity_unit(summary)
    if run["command"] == "capacity":
        in_devices = unit == "devices"
        title = "capacity (95%)" if in_devices else f"capacity\n({unit})"
        columns = (ServingColumn(title, "count" if in_devices else "number", "capacity"),)
    columns = columns[: MOST_COLUMNS - len(axes)]
    cells = []
    for row in rows:
        first, *others = (estimate(look_up(row, column.path)) for column in columns)
        cells.append([*point_cells(row, axes), first, *(other and other.value for other in others)])
    return Table(("system", *(Column(AXIS_TITLES.get(axis, axis), "count") for axis in axes), *columns), cells)


def _latencies(summary: Summary) -> list[Block]:
    """Return median, 95th and 99th percentile of what users wait for, by class; nothing if the table would be long."""
    rows = summary["rows"]
    axes = [axis for axis in AXES if axis in varied(rows)]
    cells = []
    for row in rows:
        for name, group in latency_groups(row):
            cells.append([*point_cells(row, axes), name, *(_percentiles(group, path) for path in LATENCIES.values())])
    if not 0 < len(cells) <= MOST_LATENCIES:
        return []
    titles = [f"{title} (s)\np50 p95 p99" for title in LATENCIES]
    return [Table(("system", *(AXIS_TITLES.get(axis, axis) for axis in axes), "class", *titles), cells)]


def _percentiles(group: Row, path: str) -> str:
    values = [mean_of(group, f"{path}.{name}") for name in ("p50", "p95", "p99")]
    return " ".join(ABSENT if value is None else significant(value) for value in values)


def _published(run: RunFile, summary: Summary) -> Table:
    against = run["preset"]["against"]
    ratio_titles = [f"{against} /\nsystem", "ratio of\nratios"] if against else []
    numbers = ["published", "simulated", "simulated /\npublished", *ratio_titles]
    cells = []
    for pair in summary["published"]:
        series, point, figure, published, _, ratio, _, simulated_ratio, ratio_of_ratios = wording.published_cells(pair)
        subject = f"{series}, {point}" if pair.where else series
        simulated = Column(unit=wording.unit_of(pair)).text(pair.simulated and pair.simulated.mean)
        cells.append(
            [subject, figure, published, simulated, ratio, simulated_ratio, ratio_of_ratios][: 2 + len(numbers)]
        )
    return Table(("system", "metric", *(Column(title, "number") for title in numbers)), cells)
