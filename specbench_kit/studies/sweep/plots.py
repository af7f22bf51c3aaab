"""The pictures of a sweep: each method along the first axis, and which method is the fastest
where.
"""

from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import TYPE_CHECKING

from specbench_kit.deployments.fields import Value
from specbench_kit.metrics.vocabulary import BASELINE, MetricValues
from specbench_kit.reports.comparison.scene import legend, legend_in
from specbench_kit.reports.writing.drawing import Picture, spans_much
from specbench_kit.reports.writing.palette import BASELINE_STYLE, GREY, Style, method_styles
from specbench_kit.studies.sweep.report import RIVAL, axis_in_words, numbers_of
from specbench_kit.studies.sweep.summary import BreakEven, SweepLine, SweepSummary, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES_IN = 3.0
"""Height of curves over the first axis, without their legend."""
ROW_IN = 0.5


def pictures(summary: SweepSummary) -> Iterator[Picture]:
    """Yield speedup, with its break-even points, and throughput along the first axis, and the map
    of methods.
    """
    drawn = lines(summary.rows, summary.axes)
    axis = axis_in_words(next(iter(summary.axes)))
    labels = [line.label for line in drawn]
    yield Picture(
        "speedup",
        f"Speedup against {axis}",
        _speedup_note(summary),
        CURVES_IN + legend_in([*labels, *(f"{label}, server-only" for label in labels)]),
        lambda axes: _speedups(axes, drawn, summary),
    )
    yield Picture(
        "throughput",
        f"Throughput against {axis}",
        "Committed tokens per second of all requests together.",
        CURVES_IN + legend_in(labels),
        lambda axes: _throughputs(axes, drawn, summary),
    )
    if picture := map_of_methods(summary):
        yield picture


def _speedup_note(summary: SweepSummary) -> str:
    rings = "; rings: break-even" if any(found.crossings for found in summary.break_even) else ""
    dotted = "; dotted: with the draft model on the server" if summary.edge else ""
    return f"Over {RIVAL}: below 1, drafting is slower; shaded: 95% intervals{rings}{dotted}."


def _speedups(axes: "Axes", drawn: Sequence[SweepLine], summary: SweepSummary) -> None:
    axis, values = next(iter(summary.axes.items()))
    styles = _styles(drawn)
    for line in drawn:
        if line.series != BASELINE:
            _line(axes, styles[line.label], line, values, lambda overall: overall.speedup)
            _interval(axes, styles[line.label], line, values)
            _colocated(axes, styles[line.label], line, values)
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":")
    if at := [crossing.at for method in summary.break_even for crossing in method.crossings]:
        axes.scatter(
            at,
            [1.0] * len(at),
            90,
            facecolors="none",
            edgecolors="black",
            zorder=3,
            label="break-even",
        )
    _edge_break_even(axes, drawn, numbers_of(values), summary.edge)
    _frame(axes, axis, numbers_of(values), "speedup over autoregressive\ndecoding at the server")


def _throughputs(axes: "Axes", drawn: Sequence[SweepLine], summary: SweepSummary) -> None:
    axis, values = next(iter(summary.axes.items()))
    styles = _styles(drawn)
    for line in drawn:
        _line(
            axes,
            styles.get(line.label, BASELINE_STYLE),
            line,
            values,
            lambda overall: overall.throughput,
        )
    _frame(axes, axis, numbers_of(values), "committed tokens per second")


def _styles(drawn: Sequence[SweepLine]) -> dict[str, Style]:
    return method_styles({line.label: line.series for line in drawn if line.series != BASELINE})


def _line(
    axes: "Axes",
    style: Style,
    line: SweepLine,
    values: Sequence[Value],
    of: Callable[[MetricValues], float | None],
) -> None:
    known = (of(point.overall) for point in line.points.values())
    y = [nan if value is None else value for value in known]
    x = _positions(values)
    axes.plot(
        x,
        y,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=5,
        label=line.label,
    )


def _interval(axes: "Axes", style: Style, line: SweepLine, values: Sequence[Value]) -> None:
    """Shade the intervals of a line's speedups if all of them have one."""
    bounds = [
        bounds for point in line.points.values() if (bounds := point.overall.bounds("speedup"))
    ]
    if len(bounds) == len(line.points):
        low = [bound[0] for bound in bounds]
        high = [bound[1] for bound in bounds]
        axes.fill_between(
            _positions(values), low, high, color=style.colour, alpha=0.15, linewidth=0
        )


def _colocated(axes: "Axes", style: Style, line: SweepLine, values: Sequence[Value]) -> None:
    """Draw the method with its draft model on the server, if it drafts beyond a link."""
    known = (point.overall.colocated_speedup for point in line.points.values())
    y = [speedup for speedup in known if speedup is not None]
    if len(y) == len(line.points):
        label = f"{line.label}, server-only"
        axes.plot(
            _positions(values), y, color=style.colour, linestyle=":", linewidth=1.2, label=label
        )


def _edge_break_even(
    axes: "Axes", lines: Sequence[SweepLine], numbers: Sequence[float], edge: Sequence[BreakEven]
) -> None:
    """Mark where the edge and the co-located method are equally fast, on the co-located line
    between two points.
    """
    import numpy as np

    x = []
    y = []
    for found in edge:
        line = next(line for line in lines if line.label == found.method)
        speedups = [point.overall.colocated_speedup or nan for point in line.points.values()]
        for crossing in found.crossings:
            x.append(crossing.at)
            # Times are straight lines between two points, and speedups their inverse.
            y.append(1 / float(np.interp(crossing.at, numbers, 1 / np.array(speedups))))
    if x:
        axes.plot(
            x,
            y,
            "ks",
            fillstyle="none",
            markersize=9,
            zorder=3,
            label="edge and server-only break even",
        )


def _positions(values: Sequence[Value]) -> Sequence[float] | Sequence[str]:
    return numbers_of(values) or [str(value) for value in values]


def _frame(axes: "Axes", axis: str, numbers: Sequence[float], metric: str) -> None:
    if spans_much(numbers):
        axes.set_xscale("log")
        axes.set_xticks(numbers, [f"{value:g}" for value in numbers])
        axes.minorticks_off()
    axes.set(xlabel=axis_in_words(axis), ylabel=metric)
    axes.set_ylim(bottom=0)
    legend(axes)


def map_of_methods(summary: SweepSummary) -> Picture | None:
    """Return a cell for each pair of values, in the colour of its fastest method and with that
    method's speedup.

    Return None unless exactly two axes have several values.
    """
    varied = {key: values for key, values in summary.axes.items() if len(values) > 1}
    if len(varied) != 2:
        return None
    (row_key, row_values), (column_key, column_values) = varied.items()
    methods = list(dict.fromkeys(winner.method for winner in summary.fastest))
    styles = method_styles({name: name for name in methods if name != BASELINE})
    colours = {name: styles.get(name, BASELINE_STYLE).colour for name in methods}

    def paint(axes: "Axes") -> None:
        for winner in summary.fastest:
            x = column_values.index(winner.place[column_key])
            y = row_values.index(winner.place[row_key])
            axes.bar(x, 1, 1, y - 0.5, color=colours[winner.method], alpha=0.6)
            axes.text(x, y, f"{winner.speedup:.2f}x", ha="center", va="center", fontsize=9)
        for name, colour in colours.items():
            axes.bar(0, 0, color=colour, alpha=0.6, label=name)
        axes.set_xticks(range(len(column_values)), [str(value) for value in column_values])
        axes.set_yticks(range(len(row_values)), [str(value) for value in row_values])
        axes.set(xlabel=axis_in_words(column_key), ylabel=axis_in_words(row_key))
        axes.margins(0)
        legend(axes)
        axes.grid(visible=False)

    note = "Each cell has the colour of the fastest method there, and its speedup."
    height_in = 0.8 + ROW_IN * len(row_values) + legend_in(methods)
    return Picture("fastest", "The fastest method and its speedup", note, height_in, paint)
