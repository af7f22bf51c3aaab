"""Plots of a sweep, as PNG and SVG files that can be read without colour.

Also here: the map of the fastest method over two axes of a sweep.
"""

from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.document import Row
from specbench_kit.reports.sweep.report import axis_in_words
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import BASELINE_STYLE, GREY, Style, method_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOGARITHMIC_SPAN = 20
"""The ratio of an axis's largest to its smallest value from which on its scale is logarithmic."""


class PlottedAxis(Protocol):
    """A varied key with its values; `numbers` is empty if some of them are not numbers."""

    @property
    def key(self) -> str: ...
    @property
    def values(self) -> Sequence[object]: ...
    @property
    def numbers(self) -> Sequence[float]: ...


class PlottedPoint(Protocol):
    """The metrics of one method at one point."""

    @property
    def overall(self) -> Row: ...


class PlottedLine(Protocol):
    """One method along the axis; `series` is its spec."""

    @property
    def label(self) -> str: ...
    @property
    def series(self) -> str: ...
    @property
    def points(self) -> Mapping[Any, PlottedPoint]: ...


def write_plots(
    folder: Path,
    lines: Sequence[PlottedLine],
    axis: PlottedAxis,
    break_even: Sequence[Row],
    edge: Sequence[Row],
    where: str,
) -> None:
    """Write speedup, with its break-even points, and throughput, both along the first axis.

    `break_even` are the points against autoregressive serving, `edge` those against the co-located method.
    """
    folder.mkdir(parents=True, exist_ok=True)
    styles = method_styles({line.label: line.series for line in lines if line.series != BASELINE})
    with plot(folder / "speedup.png", (6, 4)) as axes:
        for line in lines:
            if line.series != BASELINE:
                _line(axes, styles[line.label], line, axis, "speedup", interval=True)
                _colocated(axes, styles[line.label], line, axis)
        axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
        if at := [crossing["at"] for method in break_even for crossing in method["crossings"]]:
            ring = {"facecolors": "none", "edgecolors": "black"}
            axes.scatter(at, [1.0] * len(at), 90, **ring, zorder=3, label="break-even")
        _edge_break_even(axes, lines, axis, edge)
        _frame(axes, axis, "speedup over autoregressive decoding at the server", f"Speedup, modelled\n({where})")
    with plot(folder / "throughput.png", (6, 4)) as axes:
        for line in lines:
            _line(axes, styles.get(line.label, BASELINE_STYLE), line, axis, "throughput", interval=False)
        _frame(axes, axis, "committed tokens per second", f"Throughput, modelled\n({where})")


def _line(axes: "Axes", style: Style, line: PlottedLine, axis: PlottedAxis, metric: str, *, interval: bool) -> None:
    x = _positions(axis)
    y = [point.overall[metric] for point in line.points.values()]
    axes.plot(x, y, color=style.colour, linestyle=style.line, marker=style.marker, markersize=5, label=line.label)
    bounds = [point.overall["intervals"].get(metric) for point in line.points.values()]
    if interval and all(bounds):
        low, high = zip(*bounds, strict=True)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)


def _colocated(axes: "Axes", style: Style, line: PlottedLine, axis: PlottedAxis) -> None:
    """Draw the method with its draft model on the server, if it drafts beyond a link."""
    y = [point.overall.get("colocated_speedup", nan) for point in line.points.values()]
    if not any(map(isnan, y)):
        label = f"{line.label}, server-only"
        axes.plot(_positions(axis), y, color=style.colour, linestyle=":", linewidth=1.2, label=label)


def _edge_break_even(axes: "Axes", lines: Sequence[PlottedLine], axis: PlottedAxis, edge: Sequence[Row]) -> None:
    """Mark where the edge and the co-located method are equally fast, on the co-located line between two points."""
    import numpy as np

    points = []
    for method in edge:
        line = next(line for line in lines if line.label == method["method"])
        for crossing in method["crossings"]:
            speedups = [point.overall["colocated_speedup"] for point in line.points.values()]
            points.append((crossing["at"], float(np.interp(crossing["at"], axis.numbers, speedups))))
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, "ks", fillstyle="none", markersize=9, zorder=3, label="edge and server-only break even")


def _positions(axis: PlottedAxis) -> Sequence[float] | Sequence[str]:
    return axis.numbers or [str(value) for value in axis.values]


def _frame(axes: "Axes", axis: PlottedAxis, metric: str, title: str) -> None:
    values = axis.numbers
    if values and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_SPAN:
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    axes.set(xlabel=axis_in_words(axis.key), ylabel=metric, title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def write_map(folder: Path, fastest: Sequence[Row], axes: Sequence[PlottedAxis], where: str) -> None:
    """Write a cell for each pair of values, in the colour of its fastest method and with that method's speedup.

    Write nothing unless exactly two axes have several values.
    """
    varied = [axis for axis in axes if len(axis.values) > 1]
    if len(varied) != 2:
        return
    rows, columns = varied
    methods = list(dict.fromkeys(winner["method"] for winner in fastest))
    styles = method_styles({name: name for name in methods if name != BASELINE})
    colours = {name: styles.get(name, BASELINE_STYLE).colour for name in methods}
    size = (3.5 + 1.2 * len(columns.values), 2 + 0.6 * len(rows.values))
    with plot(folder / "fastest.png", size) as drawn:
        for winner in fastest:
            x, y = (axis.values.index(winner["place"][axis.key]) for axis in (columns, rows))
            drawn.bar(x, 1, 1, y - 0.5, color=colours[winner["method"]], alpha=0.6)
            drawn.text(x, y, f"{winner['speedup']:.2f}x", ha="center", va="center", fontsize=9)
        for name, colour in colours.items():
            drawn.bar(0, 0, color=colour, alpha=0.6, label=name)
        drawn.set_xticks(range(len(columns.values)), [str(value) for value in columns.values])
        drawn.set_yticks(range(len(rows.values)), [str(value) for value in rows.values])
        drawn.set(
            xlabel=axis_in_words(columns.key),
            ylabel=axis_in_words(rows.key),
            title=f"Fastest method and its speedup, modelled\n({where})",
        )
        drawn.margins(0)
        drawn.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
