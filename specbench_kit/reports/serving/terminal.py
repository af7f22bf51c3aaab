"""A simulation, or a search for capacity, as a compact table on the terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.serving_rows import AXES, look_up, varied
from specbench_kit.reports.serving import wording
from specbench_kit.reports.serving.wording import cell
from specbench_kit.reports.writing.cautions import setting_cautions
from specbench_kit.reports.writing.formatting import count, share, significant
from specbench_kit.reports.writing.wording import time_kind

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Fields = Mapping[str, Any]

SIMULATED = {
    "violations (95%)": ("figures.overall.violation_rate", share),
    "tokens/s": ("figures.overall.throughput", significant),
    "goodput": ("figures.overall.goodput", significant),
    "acceptance\nlength": ("figures.overall.acceptance_length", significant),
    "busy": ("figures.server.utilisation", share),
}
AXIS_NAMES = {
    "slo_scale": "SLO\nscale",
    "estimator_factor": "estimate\nfactor",
    "estimator_noise": "estimate\nnoise",
    "guard_s": "guard\n(s)",
}
MOST_COLUMNS = 6
"""Beside the series, which 80 characters have room for; the report has all."""
NARROWEST = 8
"""Of a column of words."""


def print_serving(console: "Console", run: Fields, summary: Fields) -> None:
    """A row per point, then what a paper found beside it."""
    from rich.text import Text

    config = run["config"]
    seeds = f"{config['seeds']} seeds of {config['duration_s']:g} simulated seconds"
    console.print(Text(f"{seeds} · {time_kind(dict(run))}", style="dim"))
    console.print(_table(summary, _searched(summary) if run["command"] == "capacity" else SIMULATED))
    if summary.get("published"):
        console.print(_published(summary["published"], run["preset"]["against"]))
    for found in summary["guards"]:
        console.print(Text(wording.guard_sentence(found)), soft_wrap=True)
    for line in [*setting_cautions(dict(run)), *wording.cautions(summary)]:
        console.print(Text(line, style="bold yellow"))


def _searched(summary: Fields) -> Mapping[str, Any]:
    unit = wording.unit_of(summary)
    if unit == "devices":
        return {"capacity (95%)": ("capacity", count)}
    return {f"capacity\n({unit})": ("capacity", significant)}


def _table(summary: Fields, columns: Mapping[str, Any]) -> "Table":
    from rich.text import Text

    rows = summary["rows"]
    first = "slo" if "devices" not in rows[0] else "devices"
    axes = [axis for axis in AXES if axis == first or axis in varied(rows)]
    columns = dict(list(columns.items())[: MOST_COLUMNS - len(axes)])
    table = _empty(["series", *(AXIS_NAMES.get(axis, axis) for axis in axes), *columns], 1)
    for row in rows:
        places = ["" if row[axis] is None else str(row[axis]) for axis in axes]
        leading, *others = ((look_up(row, path), form) for path, form in columns.values())
        cells = [cell(*leading), *(form(None if found is None else found["mean"]) for found, form in others)]
        table.add_row(*map(Text, (row["series"], *places, *cells)))
    return table


def _published(pairs: Sequence[Fields], against: str) -> "Table":
    from rich.text import Text

    ratios = [f"{against} /\nseries", "ratio of\nratios"] if against else []
    table = _empty(["series", "figure", "published", "simulated", "simulated /\npublished", *ratios], 2)
    for pair in pairs:
        series, at, figure, published, _, ratio, _, simulated_ratio, ratios_ratio = wording.published_cells(pair)
        where = [at] if pair["where"] else []
        simulated = wording.cell(pair["simulated"] and {**pair["simulated"], "low": None}, wording.form_of(pair))
        cells = [", ".join([series, *where]), figure, published, simulated, ratio, simulated_ratio, ratios_ratio]
        table.add_row(*map(Text, cells[: 5 + len(ratios)]))
    return table


def _empty(columns: Sequence[str], words: int) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        if place < words:
            table.add_column(name, overflow="fold", min_width=NARROWEST)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table
