"""The figures of a measured load and of its simulation, and the files of both reports."""

from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.reports.document import Document, RunFile, Summary
from specbench_kit.reports.pages.live import (
    SIMULATED,
    TOLERANCES,
    JudgedError,
    Validation,
    judged_errors,
    load_report,
    name_of,
    validation_report,
)
from specbench_kit.reports.render_html import write_page, write_pictures
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.palette import COLOURS, GREY, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.26
FRAME_IN = 1.0
"""Height of a row, and of the axis and the legend below the rows."""


def write_load(folder: Path, run: RunFile, summary: Summary) -> Document:
    """Write the report of a load with its figure, and return its document."""
    document = load_report(run, summary, write_pictures(folder, [round_trips(summary)], _where(run)))
    write_page(folder, document)
    return document


def write_validation(folder: Path, name: str, run: RunFile, result: Validation) -> Document:
    """Write the report on a load's simulation, as files of this name, and return its document."""
    pictures = [errors] if (errors := error_picture(result)) else []
    document = validation_report(run, result, write_pictures(folder, pictures, _where(run)))
    write_page(folder, document, name)
    return document


def _where(run: RunFile) -> str:
    config = run["config"]
    server = run["server"]
    return (
        f"{config['scheduler']} on {server['device']}, {config['method']}, promised {slo_in_words(config['slo'][0])}, "
        f"{config['duration_s']:g} s per load"
    )


def round_trips(summary: Summary) -> Picture:
    """Return the picture of how long rounds take under each load: a line from the median to the slowest percent."""
    rows = [row for row in summary["rows"] if row["round_s"]["p50"] is not None]

    def draw(axes: "Axes") -> None:
        for number, row in enumerate(rows):
            p50_ms, p95_ms, p99_ms = (1e3 * row["round_s"][name] for name in ("p50", "p95", "p99"))
            axes.plot([p50_ms, p99_ms], [number, number], color=COLOURS[0], linewidth=2)
            for index, (name, time_ms) in enumerate((("P50", p50_ms), ("P95", p95_ms), ("P99", p99_ms))):
                name_once = name if number == 0 else None
                axes.plot([time_ms], [number], MARKERS[index], color=COLOURS[0], markersize=6, label=name_once)
        axes.set_yticks(range(len(rows)), [name_of(row) for row in rows])
        axes.invert_yaxis()
        axes.margins(y=0.3)
        axes.set_xlim(left=0)
        axes.set_xlabel("time from a draft sent to its answer (ms)")
        axes.grid(axis="x", alpha=0.3)
        if rows:
            axes.legend(loc="best")

    note = "Half of the rounds are faster than P50; one in a hundred is slower than P99. To the left is better."
    return Picture("round_trips", "Round trips by load", note, FRAME_IN + ROW_IN * max(2, len(rows)), draw)


def error_picture(result: Validation) -> Picture | None:
    """Return the picture of how far simulated figures are off, or None if none has a tolerance."""
    errors = judged_errors(result)
    by_figure: dict[tuple[str, str], list[JudgedError]] = {}
    for error in errors:
        by_figure.setdefault((error.load, error.column.title), []).append(error)
    several = len({load for load, _ in by_figure}) > 1
    # Names leave most of the width to the errors: the unit stands in the table.
    short = {figure: figure.partition(" (")[0] for _, figure in by_figure}
    names = [
        f"{short[figure]}\n{load.replace(' and ', ', ').replace(' requests', '')}" if several else short[figure]
        for load, figure in by_figure
    ]

    def draw(axes: "Axes") -> None:
        named = set[str]()
        for number, members in enumerate(by_figure.values()):
            reach = 100 * (members[0].column.tolerance or 0.0)
            axes.plot([-reach, reach], [number, number], color=GREY, linewidth=7, alpha=0.3, solid_capstyle="butt")
            for error in members:
                index = list(SIMULATED).index(error.variant)
                name = None if error.variant in named else SIMULATED[error.variant]
                named.add(error.variant)
                axes.plot([100 * error.error], [number], MARKERS[index], color=COLOURS[index], markersize=6, label=name)
        axes.axvline(0, color=GREY, linewidth=1)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("simulated less measured (%)")
        axes.grid(axis="x", alpha=0.3)
        axes.figure.legend(loc="outside lower center", frameon=False)

    note = f"Grey: the tolerances ({TOLERANCES}). A mark beyond them is missed; violations are in points."
    height_in = FRAME_IN + 0.3 + (1.3 if several else 1.0) * ROW_IN * max(2, len(names))
    return Picture("simulation_errors", "How far the simulation is off", note, height_in, draw) if errors else None
