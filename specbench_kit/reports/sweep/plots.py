"""Plots of a sweep, as PNG and SVG files that need no colour to be read."""

from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import BASELINE_STYLE, GREY, Style, method_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]

FORMATS = ("png", "svg")
LOGARITHMIC_SPAN = 20
"""Of an axis whose largest value is so many times its smallest."""


class Axis(Protocol):
    """What is varied: `numbers` are its values as points on a line, none where they are not all numbers."""

    @property
    def key(self) -> str: ...
    @property
    def values(self) -> Sequence[Any]: ...
    @property
    def numbers(self) -> Sequence[float]: ...


class Row(Protocol):
    """The metrics at one point."""

    @property
    def overall(self) -> Fields: ...


class Line(Protocol):
    """One method along the axis; `series` is its spec."""

    @property
    def label(self) -> str: ...
    @property
    def series(self) -> str: ...
    @property
    def points(self) -> Mapping[Any, Row]: ...


def write_plots(
    folder: Path, lines: Sequence[Line], axis: Axis, found: Sequence[Fields], edge: Sequence[Fields], where: str
) -> None:
    """Speedup with its break-even points, and throughput, both along the first axis.

    `found` are the break-even points against autoregressive serving, `edge` those against the co-located method.
    """
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    styles = _styles(lines)
    with matplotlib.rc_context({"svg.hashsalt": "skit"}):
        with plot(folder / "speedup.png", (8, 5), formats=FORMATS) as axes:
            for line in lines:
                if line.series != BASELINE:
                    _line(axes, styles[line.label], line, axis, "speedup", interval=True)
                    _colocated(axes, styles[line.label], line, axis)
            _break_even(axes, found)
            _change_of_place(axes, lines, axis, edge)
            _frame(axes, axis, "speedup over centralised autoregressive serving", f"Speedup, modelled\n({where})")
        with plot(folder / "throughput.png", (8, 5), formats=FORMATS) as axes:
            for line in lines:
                _line(axes, styles[line.label], line, axis, "throughput", interval=False)
            _frame(axes, axis, "committed tokens per second", f"Throughput, modelled\n({where})")


def _styles(lines: Sequence[Line]) -> Mapping[str, Style]:
    others = method_styles({line.label: line.series for line in lines if line.series != BASELINE})
    return {line.label: others.get(line.label, BASELINE_STYLE) for line in lines}


def _line(axes: "Axes", style: Style, line: Line, axis: Axis, metric: str, *, interval: bool) -> None:
    x = _places(axis)
    y = [row.overall[metric] for row in line.points.values()]
    axes.plot(x, y, color=style.colour, linestyle=style.line, marker=style.marker, markersize=5, label=line.label)
    bounds = [row.overall["intervals"].get(metric) for row in line.points.values()]
    if interval and all(bounds):
        low, high = zip(*bounds, strict=True)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)


def _colocated(axes: "Axes", style: Style, line: Line, axis: Axis) -> None:
    """The same method with its draft model beside the target, where it drafts beyond a link."""
    y = [row.overall.get("colocated_speedup", nan) for row in line.points.values()]
    if not any(map(isnan, y)):
        label = f"{line.label}, co-located"
        axes.plot(_places(axis), y, color=style.colour, linestyle=":", linewidth=1.2, label=label)


def _change_of_place(axes: "Axes", lines: Sequence[Line], axis: Axis, edge: Sequence[Fields]) -> None:
    """Where edge and co-located method are equally fast."""
    known = {line.label: line for line in lines}
    found = [(known[one["method"]], crossing["at"]) for one in edge for crossing in one["crossings"]]
    if found:
        x, y = [at for _, at in found], [_at(line, axis, at) for line, at in found]
        label = "edge and co-located break even"
        axes.plot(x, y, "ks", fillstyle="none", markersize=9, zorder=3, label=label)


def _at(line: Line, axis: Axis, place: float) -> float:
    """The co-located speedup between two points of the grid."""
    import numpy as np

    return float(np.interp(place, axis.numbers, [row.overall["colocated_speedup"] for row in line.points.values()]))


def _places(axis: Axis) -> Sequence[Any]:
    return axis.numbers or [str(value) for value in axis.values]


def _break_even(axes: "Axes", found: Sequence[Fields]) -> None:
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    places = [crossing["at"] for one in found for crossing in one["crossings"]]
    if places:
        ones = [1.0] * len(places)
        axes.scatter(places, ones, 90, facecolors="none", edgecolors="black", zorder=3, label="break-even")


def _frame(axes: "Axes", axis: Axis, metric: str, title: str) -> None:
    values = axis.numbers
    if values and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_SPAN:
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    axes.set(xlabel=axis.key, ylabel=metric, title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)
