"""Parts that the figures of simulations share: curves with intervals, bars, frames and legends."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.reports.serving.charts import NAMES, Chart
from specbench_kit.reports.stored import Row
from specbench_kit.reports.writing.palette import BLACK, GREY, HATCHES

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
    width, middles = 0.8 / len(chart.lines), {}
    for number, line in enumerate(chart.lines):
        heights: list[tuple[float, Row]] = []
        for group, estimate in enumerate(estimates[line.label]):
            middle = group + (number - (len(chart.lines) - 1) / 2) * width
            middles[line.label, group] = middle
            if estimate is not None:
                heights.append((middle, estimate))
        x, y = [middle for middle, _ in heights], [estimate["mean"] for _, estimate in heights]
        colour, hatch = line.style.colour, HATCHES[number % len(HATCHES)]
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
