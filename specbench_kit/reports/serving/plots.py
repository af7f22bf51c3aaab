"""The figures of a simulation and of a search for capacity, drawn once for PNG, SVG and the HTML page.

Also here: a simulation's report as files: Markdown, one HTML page, and plots; parts that the figures of simulations
share: curves with intervals, bars, frames and legends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.reports.document import Row, RunFile, Summary
from specbench_kit.reports.render_html import write_page, write_pictures
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.serving.charts import NAMES, Chart, chart
from specbench_kit.reports.serving.report import serving_report
from specbench_kit.reports.serving.wording import capacity_unit, seeds_in_words
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.palette import BLACK, GREY, HATCHES
from specbench_kit.runs.document import RunDescription

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FigureOf = Callable[[Row], Row | None]

PUBLISHED = "published"
HEIGHT_IN = 3.0
LEGEND_IN = 0.16
LOGARITHMIC_SPAN = 20
"""The ratio of an axis's largest to its smallest value from which on its scale is logarithmic."""


def curves(axes: "Axes", chart: Chart, figure: str | FigureOf, scale: float, *, faint: bool = False) -> None:
    """Draw an estimate of every row: lines with intervals, or bars if no line has several points.

    `figure` is the estimate's path in a row, or a function of the row. Faint curves are drawn next to the normal ones,
    without label and interval.
    """
    read = figure if callable(figure) else partial(look_up, path=figure)
    for number, line in enumerate(chart.lines):
        figures = [(value, read(row)) for value, row in zip(chart.x(line), line.rows, strict=True)]
        points = [(value, estimate) for value, estimate in figures if estimate and estimate["mean"] is not None]
        if not points:
            continue
        # matplotlib draws names in their order; a bar stands beside its faint one.
        bar = number + (0.2 if faint else -0.2)
        x = np.array([value if chart.has_lines else bar for value, _ in points])
        y = [scale * estimate["mean"] for _, estimate in points]
        style = line.style
        if not chart.has_lines:
            axes.bar(x, y, 0.38, color=style.colour, edgecolor=BLACK, linewidth=0.5, alpha=0.4 if faint else 1)
        else:
            label, size, alpha = (None, 3, 0.4) if faint else (line.label, 4, None)
            axes.plot(
                x,
                y,
                label=label,
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=size,
                alpha=alpha,
            )
        if not faint and all(estimate["low"] is not None for _, estimate in points):
            low, high = ([scale * estimate[end] for _, estimate in points] for end in ("low", "high"))
            if len(x) > 1:
                axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
            axes.vlines(x, low, high, color=style.colour if len(x) > 1 else BLACK, linewidth=1)


def bars(
    axes: "Axes", chart: Chart, estimates: Mapping[str, Sequence[Row | None]], names: Sequence[str]
) -> dict[tuple[str, int], float]:
    """Draw a group of bars per name, with intervals; return the middle of each bar by line and group."""
    width = 0.8 / len(chart.lines)
    middles = {}
    for number, line in enumerate(chart.lines):
        heights: list[tuple[float, Row]] = []
        for group, estimate in enumerate(estimates[line.label]):
            middle = group + (number - (len(chart.lines) - 1) / 2) * width
            middles[line.label, group] = middle
            if estimate is not None:
                heights.append((middle, estimate))
        x = [middle for middle, _ in heights]
        y = [estimate["mean"] for _, estimate in heights]
        colour = line.style.colour
        hatch = HATCHES[number % len(HATCHES)]
        axes.bar(x, y, width * 0.92, label=line.label, color=colour, hatch=hatch, edgecolor=BLACK, linewidth=0.5)
        for middle, estimate in heights:
            if estimate["low"] is not None:
                axes.vlines([middle], [estimate["low"]], [estimate["high"]], color=BLACK, linewidth=1)
    axes.set_xticks(range(len(names)), list(names))
    return middles


def frame(axes: "Axes", chart: Chart, label: str, top: float | None = None) -> None:
    """Label and scale both axes and add the legend; `label` names the vertical axis."""
    axes.set(ylabel=label)
    axes.set_ylim(bottom=0, top=top)
    axes.grid(alpha=0.3, color=GREY, axis="both" if chart.has_lines else "y")
    if not chart.has_lines:
        axes.set_xticks(range(len(chart.lines)), [line.label for line in chart.lines])
        return
    axes.set_xlabel(NAMES[chart.axis])
    values = [value for line in chart.lines for value in chart.x(line)]
    if chart.numeric and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_SPAN:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    legend(axes, chart)


def legend(axes: "Axes", chart: Chart) -> None:
    """Put the legend below the axes, where it hides nothing; published values come last."""
    labelled = zip(*axes.get_legend_handles_labels(), strict=True)
    entries = zip(*sorted(labelled, key=lambda entry: entry[1] == PUBLISHED), strict=True)
    axes.figure.legend(*entries, loc="outside lower center", ncols=_columns(chart), fontsize=7, frameon=False)


def height(chart: Chart) -> float:
    """Return a figure's height in inches, with room for the legend."""
    return HEIGHT_IN + LEGEND_IN * -(-(len(chart.lines) + 1) // _columns(chart))


def _columns(chart: Chart) -> int:
    longest = max(len(line.label) for line in chart.lines)
    return 3 if longest <= 16 else 2 if longest <= 30 else 1


OVERALL = "figures.overall"
OVER_TIME = {
    "draft_length": ("Draft length over time", "tokens sent in a verification"),
    "batch_size": ("Batch size over time", "requests in a batch"),
    "left_waiting": ("Queue over time", "requests left waiting"),
    "load": ("Load over time", "share of time in which the server is busy"),
}
"""Title and label of each figure over the simulated time."""


def pictures(run: RunFile, summary: Summary) -> Iterator[Picture]:
    """Yield every figure that has something to show."""
    rows = summary["rows"]
    lines = chart(rows)
    if run["command"] == "capacity":
        lines = _most_first(lines)
        # A single capacity is a number, which a bar does not explain; the loads that were tried do.
        if len(rows) > 1:
            yield _capacity(lines, summary)
        yield _tried_loads(lines, capacity_unit(summary), summary["rule"]["epsilon"])
        return
    if any(look_up(row, f"{OVERALL}.violation_rate") for row in rows):
        yield _violations(lines, summary)
    note = "Solid: all committed tokens; faint: goodput, the tokens of responses that keep their SLO."
    throughput = f"{OVERALL}.throughput"
    yield _pair(
        "throughput", "Throughput and goodput", note, lines, throughput, f"{OVERALL}.goodput", 1, "tokens per second"
    )
    yield _waiting(lines)
    note = "The time of a round's batch over the round's time alone. Solid: mean; faint: 95th percentile."
    mean = f"{OVERALL}.interference.mean"
    p95 = f"{OVERALL}.interference.p95"
    yield _pair("interference", "Interference", note, lines, mean, p95, 1, "batch time / time alone")
    if any(_missed_deadlines(row) for row in rows):
        note = (
            "The others missed it because of their own batch, which took over 1.5 times the moving mean of 50 batches."
        )
        label = "missed deadlines due to queueing (%)"
        yield _pair(
            "attribution", "Why rounds missed their deadline", note, lines, _queue_share, None, 100, label, top=103
        )
    if any(len(line.rows[-1]["figures"]["classes"]) > 1 for line in lines.lines):
        yield _attainment(lines)
    if all(look_up(line.rows[-1], "figures.over_time") for line in lines.lines):
        for name in OVER_TIME:
            yield _over_time(lines, name)


def _pair(
    name: str,
    title: str,
    note: str,
    lines: Chart,
    figure: str | FigureOf,
    faint: str | None,
    scale: float,
    label: str,
    top: float | None = None,
) -> Picture:
    """Return a picture of one figure of the rows, with another one as faint lines."""

    def paint(axes: "Axes") -> None:
        curves(axes, lines, figure, scale)
        if faint is not None:
            curves(axes, lines, faint, scale, faint=True)
        frame(axes, lines, label, top)

    return Picture(name, title, note, height(lines), paint)


def _violations(lines: Chart, summary: Summary) -> Picture:
    def paint(axes: "Axes") -> None:
        curves(axes, lines, f"{OVERALL}.violation_rate", 100)
        rows = [row for line in lines.lines for row in line.rows] if lines.axis == "devices" else []
        for row in rows:
            if any(knee.items() <= row.items() for knee in summary["knees"]):
                rate = 100 * look_up(row, f"{OVERALL}.violation_rate.mean")
                axes.scatter([row["devices"]], [rate], 110, facecolors="none", edgecolors=BLACK, zorder=4)
        frame(axes, lines, "responses that break their SLO (%)", top=103)

    note = "Means over seeds with 95% intervals; a ring marks the knee, where a line begins to rise."
    return Picture("violations", "Violation rate", note, height(lines), paint)


def _waiting(lines: Chart) -> Picture:
    def paint(axes: "Axes") -> None:
        curves(axes, lines, f"{OVERALL}.verify_s.mean", 1e3)
        curves(axes, lines, f"{OVERALL}.queue_s.mean", 1e3, faint=True)
        frame(axes, lines, "ms per round")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)

    note = "Solid: mean time in verification; faint: mean time in the queue before it."
    return Picture("waiting", "Queue and verification", note, height(lines), paint)


def _missed_deadlines(row: Row) -> float:
    violations = row["figures"]["violations"]
    missed: float = violations["compute_dominant"]["mean"] + violations["queue_dominant"]["mean"]
    return missed


def _queue_share(row: Row) -> Row | None:
    """Return the share of missed deadlines that is due to queueing; a ratio of means, so that it has no interval."""
    missed = _missed_deadlines(row)
    if not missed:
        return None
    return {"mean": row["figures"]["violations"]["queue_dominant"]["mean"] / missed, "low": None, "high": None}


def _attainment(lines: Chart) -> Picture:
    """Return bars of SLO attainment by class, for each line at its last point."""
    classes = {line.label: line.rows[-1]["figures"]["classes"] for line in lines.lines}
    names = list(next(iter(classes.values())))

    def attainment(group: Row | None) -> Row | None:
        rate = group and group["violation_rate"]
        if not rate:
            return None
        low, high = (None, None) if rate["low"] is None else (100 * (1 - rate["high"]), 100 * (1 - rate["low"]))
        return {"mean": 100 * (1 - rate["mean"]), "low": low, "high": high}

    def paint(axes: "Axes") -> None:
        estimates = {label: [attainment(groups.get(name)) for name in names] for label, groups in classes.items()}
        bars(axes, lines, estimates, names)
        axes.set(xlabel="SLO class", ylabel="SLO attainment (% of responses)")
        axes.set_ylim(0, 103)
        legend(axes, lines)

    where = f" At the last point of the axis ({NAMES[lines.axis]})." if lines.has_lines else ""
    note = f"Means over seeds with 95% intervals.{where}"
    return Picture("attainment", "SLO attainment by class", note, height(lines), paint)


def _over_time(lines: Chart, name: str) -> Picture:
    title, label = OVER_TIME[name]

    def paint(axes: "Axes") -> None:
        for line in lines.lines:
            series = line.rows[-1]["figures"]["over_time"]
            points = [(x, y) for x, y in zip(series["at_s"], series[name], strict=True) if y is not None]
            x = [x for x, _ in points]
            y = [y for _, y in points]
            axes.plot(x, y, label=line.label, color=line.style.colour, linestyle=line.style.line)
        axes.set(xlabel="simulated time (s)", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        legend(axes, lines)

    note = "The first seed, each series at its last point; means over equal time spans, including the warm-up."
    return Picture(f"time_{name}", title, note, height(lines), paint)


def _capacity(lines: Chart, summary: Summary) -> Picture:
    names = list(dict.fromkeys(str(x) for line in lines.lines for x in lines.x(line)))
    published = [pair for pair in summary.get("published", ()) if pair.metric == "capacity" and pair.value]

    def paint(axes: "Axes") -> None:
        if lines.numeric:
            curves(axes, lines, "capacity", 1)
        else:
            capacities = {
                line.label: dict(zip(lines.x(line), (row["capacity"] for row in line.rows), strict=True))
                for line in lines.lines
            }
            estimates = {label: [by_slo.get(name) for name in names] for label, by_slo in capacities.items()}
            _mark_published(axes, published, names, bars(axes, lines, estimates, names))
        axes.set(xlabel=NAMES[lines.axis], ylabel=capacity_unit(summary))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        legend(axes, lines)

    marks = " Diamonds: published." if published else ""
    note = f"The highest load whose violation rate is at most epsilon; 95% intervals over seeds.{marks}"
    return Picture("capacity", "Capacity", note, height(lines), paint)


def _mark_published(
    axes: "Axes", published: Sequence[ComparedNumber], names: Sequence[str], middles: dict[tuple[str, int], float]
) -> None:
    """Draw a diamond at every published number whose bar is drawn."""
    groups = {name: number for number, name in enumerate(names)}
    x = []
    y = []
    for pair in published:
        bar = pair.series, groups.get(slo_in_words(str(pair.where.get("slo", ""))), -1)
        if bar in middles and pair.value is not None:
            x.append(middles[bar])
            y.append(pair.value)
    if x:
        axes.scatter(x, y, 42, marker="D", facecolors="white", edgecolors=BLACK, zorder=4, label=PUBLISHED)


def _most_first(lines: Chart) -> Chart:
    """Return the chart with the systems of the largest capacity at their first point first."""
    by_capacity = sorted(lines.lines, key=lambda line: -line.rows[0]["capacity"]["mean"])
    return replace(lines, lines=by_capacity)


def _tried_loads(lines: Chart, unit: str, epsilon: float) -> Picture:
    def paint(axes: "Axes") -> None:
        for line in lines.lines:
            for row in line.rows:
                trials = [trial for seed in row["seeds"] for trial in seed["trials"]]
                points = sorted((trial["load"], 100 * trial["rate"]) for trial in trials)
                if points:
                    x, y = zip(*points, strict=True)
                    label = line.label if row is line.rows[0] else None
                    style = line.style
                    axes.plot(
                        x,
                        y,
                        marker=style.marker,
                        label=label,
                        color=style.colour,
                        linestyle="none",
                        markersize=4,
                        alpha=0.7,
                    )
        axes.axhline(
            100 * epsilon, color=BLACK, linewidth=1, linestyle=":", label=f"promise: at most {100 * epsilon:g} %"
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=unit, ylabel="responses that break their SLO (%)")
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.3)
        legend(axes, lines)

    note = (
        f"Every load that was tried, under every SLO. Below the dotted line, at {100 * epsilon:g} %, a load counts as "
        "served; runs whose result was clear early were stopped early."
    )
    return Picture("tried", "Violation rates of all tried loads", note, height(lines), paint)


def write_reports(folder: Path, run: RunFile, summary: Summary) -> None:
    """Write `report.md`, `report.html`, and `plots/` as PNG and SVG."""
    config = run["config"]
    where = f"{seeds_in_words(config)} of {config['duration_s']:g} simulated s, {time_kind(RunDescription.read(run))}"
    figures = write_pictures(folder, pictures(run, summary), where)
    links = [path.name for path in sorted(folder.glob("timeline-*.json"))]
    links += ["events/"] if (folder / "events").is_dir() else []
    write_page(folder, serving_report(run, summary, figures, links))
