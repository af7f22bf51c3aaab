"""The figures of a simulation and of a search for capacity, and the files of the report that shows
them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.reports.writing.drawing import Picture, spans_much
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.palette import BLACK, GREY, HATCHES
from specbench_kit.serving.figures import (
    GroupFigures,
    Interval,
    SearchedRow,
    ServingPoint,
    SimulatedRow,
    TimeSeries,
)
from specbench_kit.studies.serving.summary import (
    NAMES,
    CapacitySummary,
    Chart,
    ServingSummary,
    SimulationSummary,
    chart,
)
from specbench_kit.studies.serving.wording import mean_of, p95_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

R = TypeVar("R", bound=ServingPoint)
Simulated = Chart[SimulatedRow]
Searched = Chart[SearchedRow]

PUBLISHED = "published"
FEW_BROKEN = 0.01
"""Share of broken promises below which the figure of them does not come first."""
LEAST_TOP = 10.0
"""Least height, in percent, of the axis of broken promises: noise below it shall not look like
much.
"""
HEIGHT_IN = 3.0
LEGEND_IN = 0.16


def curves(
    axes: "Axes",
    chart: Chart[R],
    figure: Callable[[R], Interval | None],
    scale: float,
    faint_figure: Callable[[R], Interval | None] | None = None,
) -> None:
    """Draw an estimate of every row: lines with intervals, or bars if no line has several points.

    The faint figure is drawn beside the other one, without label and interval.
    """
    _curves(axes, chart, figure, scale, -0.2 if faint_figure else 0, faint=False)
    if faint_figure:
        _curves(axes, chart, faint_figure, scale, 0.2, faint=True)


def _curves(
    axes: "Axes",
    chart: Chart[R],
    figure: Callable[[R], Interval | None],
    scale: float,
    beside: float,
    *,
    faint: bool,
) -> None:
    for number, line in enumerate(chart.lines):
        found = [figure(row) for row in line.rows]
        estimates = [estimate for estimate in found if estimate is not None]
        if not estimates:
            continue
        # matplotlib draws names in their order; a bar stands beside its faint one.
        bar = number + beside
        places = [
            place
            for place, estimate in zip(chart.x(line), found, strict=True)
            if estimate is not None
        ]
        x = np.array(places if chart.has_lines else [bar for _ in estimates])
        y = [scale * estimate.mean for estimate in estimates]
        style = line.style
        if not chart.has_lines:
            axes.bar(
                x,
                y,
                0.38,
                color=style.colour,
                edgecolor=BLACK,
                linewidth=0.5,
                alpha=0.4 if faint else 1,
            )
            # The number stands above the interval: a bar of height 0 is not to be seen.
            for place, estimate in zip(x, estimates, strict=True):
                top = scale * max(estimate.bounds or (estimate.mean,))
                text = significant(scale * estimate.mean) if estimate.mean else "0"
                axes.annotate(
                    text, (place, top), (0, 2), textcoords="offset points", ha="center", fontsize=7
                )
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
        bounds = [estimate.bounds for estimate in estimates if estimate.bounds]
        if not faint and len(bounds) == len(estimates):
            low = [scale * ends[0] for ends in bounds]
            high = [scale * ends[1] for ends in bounds]
            if len(x) > 1:
                axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
            axes.vlines(x, low, high, color=style.colour if len(x) > 1 else BLACK, linewidth=1)


def bars(
    axes: "Axes",
    chart: Chart[R],
    estimates: Mapping[str, Sequence[Interval | None]],
    names: Sequence[str],
) -> dict[tuple[str, int], float]:
    """Draw a group of bars per name, with intervals; return the middle of each bar by line and
    group.
    """
    width = 0.8 / len(chart.lines)
    middles = {}
    for number, line in enumerate(chart.lines):
        heights: list[tuple[float, Interval]] = []
        for group, estimate in enumerate(estimates[line.label]):
            middle = group + (number - (len(chart.lines) - 1) / 2) * width
            middles[line.label, group] = middle
            if estimate is not None:
                heights.append((middle, estimate))
        x = [middle for middle, _ in heights]
        y = [estimate.mean for _, estimate in heights]
        colour = line.style.colour
        hatch = HATCHES[number % len(HATCHES)]
        axes.bar(
            x,
            y,
            width * 0.92,
            label=line.label,
            color=colour,
            hatch=hatch,
            edgecolor=BLACK,
            linewidth=0.5,
        )
        for middle, estimate in heights:
            if estimate.bounds:
                axes.vlines([middle], *estimate.bounds, color=BLACK, linewidth=1)
    axes.set_xticks(range(len(names)), list(names))
    return middles


def frame(axes: "Axes", chart: Chart[R], label: str, top: float | None = None) -> None:
    """Label and scale both axes and add the legend; `label` names the vertical axis."""
    axes.set(ylabel=label)
    axes.set_ylim(bottom=0, top=top)
    axes.grid(alpha=0.3, color=GREY, axis="both" if chart.has_lines else "y")
    if not chart.has_lines:
        axes.set_xticks(range(len(chart.lines)), [line.label for line in chart.lines])
        axes.set_xlim(-0.6, len(chart.lines) - 0.4)
        return
    axes.set_xlabel(NAMES[chart.axis])
    values = (
        [value for line in chart.lines for value in chart.numbers(line)] if chart.numeric else []
    )
    if spans_much(values):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    legend(axes, chart)


def legend(axes: "Axes", chart: Chart[R]) -> None:
    """Put the legend below the axes, where it hides nothing; published values come last."""
    labelled = zip(*axes.get_legend_handles_labels(), strict=True)
    entries = zip(*sorted(labelled, key=lambda entry: entry[1] == PUBLISHED), strict=True)
    axes.figure.legend(
        *entries, loc="outside lower center", ncols=_columns(chart), fontsize=7, frameon=False
    )


def height(chart: Chart[R]) -> float:
    """Return a figure's height in inches, with room for the legend."""
    return HEIGHT_IN + LEGEND_IN * -(-(len(chart.lines) + 1) // _columns(chart))


def _columns(chart: Chart[R]) -> int:
    longest = max(len(line.label) for line in chart.lines)
    return 3 if longest <= 16 else 2 if longest <= 30 else 1


OVER_TIME: Mapping[str, tuple[str, str, Callable[[TimeSeries], Sequence[float | None]]]] = {
    "draft_length": (
        "Draft length over time",
        "tokens sent in a verification",
        lambda over_time: over_time.draft_length,
    ),
    "batch_size": (
        "Batch size over time",
        "requests in a batch",
        lambda over_time: over_time.batch_size,
    ),
    "left_waiting": (
        "Queue over time",
        "requests left waiting",
        lambda over_time: over_time.left_waiting,
    ),
    "load": (
        "Load over time",
        "share of time in which the server is busy",
        lambda over_time: over_time.load,
    ),
}
"""Title, label and values of each figure over the simulated time."""


def pictures(summary: ServingSummary) -> Iterator[Picture]:
    """Yield every figure that has something to show."""
    if isinstance(summary, CapacitySummary):
        searched = _most_first(chart(summary.rows))
        # A single capacity is a number, which a bar does not explain; the loads that were tried do.
        if len(summary.rows) > 1:
            yield _capacity(searched, summary)
        yield _tried_loads(searched, summary)
        return
    rows = summary.rows
    lines = chart(rows)
    rates = [rate.mean for row in rows if (rate := row.figures.overall.violation_rate) is not None]
    kept = max(rates, default=0.0) < FEW_BROKEN
    if rates and not kept:
        yield _violations(lines, summary)
    yield _throughput(lines)
    # Where hardly a promise is broken, lines along the axis show nothing, and do not come first.
    if rates and kept:
        yield _violations(lines, summary)
    yield _waiting(lines)
    yield _interference(lines)
    if any(_missed_deadlines(row) for row in rows):
        yield _attribution(lines)
    if any(len(line.rows[-1].figures.classes) > 1 for line in lines.lines):
        yield _attainment(lines)
    for name, (title, label, series) in OVER_TIME.items():
        yield _over_time(lines, name, title, label, series)


def _throughput(lines: Simulated) -> Picture:
    def paint(axes: "Axes") -> None:
        curves(
            axes,
            lines,
            lambda row: row.figures.overall.throughput,
            1,
            lambda row: row.figures.overall.goodput,
        )
        frame(axes, lines, "tokens per second")

    note = "Solid: all committed tokens; faint: goodput, the share of them in responses that keep their SLO."
    return Picture("throughput", "Throughput and goodput", note, height(lines), paint)


def _interference(lines: Simulated) -> Picture:
    def paint(axes: "Axes") -> None:
        curves(
            axes,
            lines,
            lambda row: mean_of(row.figures.overall.interference),
            1,
            lambda row: p95_of(row.figures.overall.interference),
        )
        frame(axes, lines, "batch time / time alone")

    note = "The time of a round's batch over the round's time alone. Solid: mean; faint: 95th percentile."
    return Picture("interference", "Interference", note, height(lines), paint)


def _attribution(lines: Simulated) -> Picture:
    def paint(axes: "Axes") -> None:
        curves(axes, lines, _queue_share, 100)
        frame(axes, lines, "missed deadlines due to queueing (%)", 103)

    note = "The others missed it because of their own batch, which took over 1.5 times the moving mean of 50 batches."
    return Picture("attribution", "Why rounds missed their deadline", note, height(lines), paint)


def _violations(lines: Simulated, summary: SimulationSummary) -> Picture:
    knees = {(knee.series, knee.place) for knee in summary.knees}

    def paint(axes: "Axes") -> None:
        curves(axes, lines, lambda row: row.figures.overall.violation_rate, 100)
        rows = [row for line in lines.lines for row in line.rows] if lines.axis == "devices" else []
        for row in rows:
            rate = row.figures.overall.violation_rate
            if rate is not None and row.devices is not None and (row.series, row.place) in knees:
                axes.scatter(
                    [row.devices],
                    [100 * rate.mean],
                    110,
                    facecolors="none",
                    edgecolors=BLACK,
                    zorder=4,
                )
        rates = [
            rate for row in summary.rows if (rate := row.figures.overall.violation_rate) is not None
        ]
        highest = 100 * max(end for rate in rates for end in (rate.bounds or (rate.mean,)))
        frame(
            axes,
            lines,
            "responses that break their SLO (%)",
            top=min(103.0, max(LEAST_TOP, 1.25 * highest)),
        )

    note = (
        "Means over seeds with 95% intervals; a ring marks the knee, where a line begins to rise."
    )
    return Picture("violations", "Violation rate", note, height(lines), paint)


def _waiting(lines: Simulated) -> Picture:
    def paint(axes: "Axes") -> None:
        curves(
            axes,
            lines,
            lambda row: mean_of(row.figures.overall.verify_s),
            1e3,
            lambda row: mean_of(row.figures.overall.queue_s),
        )
        frame(axes, lines, "ms per round")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)

    note = "Solid: mean time in verification; faint: mean time in the queue before it."
    return Picture("waiting", "Queue and verification", note, height(lines), paint)


def _missed_deadlines(row: SimulatedRow) -> float:
    violations = row.figures.violations
    return violations.compute_dominant.mean + violations.queue_dominant.mean


def _queue_share(row: SimulatedRow) -> Interval | None:
    """Return the share of missed deadlines that is due to queueing; a ratio of means, so that it
    has no interval.
    """
    missed = _missed_deadlines(row)
    return Interval(row.figures.violations.queue_dominant.mean / missed) if missed else None


def _attainment(lines: Simulated) -> Picture:
    """Return bars of SLO attainment by class, for each line at its last point."""
    classes = {line.label: line.rows[-1].figures.classes for line in lines.lines}
    names = list(next(iter(classes.values())))

    def attainment(group: GroupFigures[Interval] | None) -> Interval | None:
        rate = group and group.violation_rate
        if not rate:
            return None
        low, high = rate.bounds or (None, None)
        if low is None or high is None:
            return Interval(100 * (1 - rate.mean))
        return Interval(100 * (1 - rate.mean), 100 * (1 - high), 100 * (1 - low))

    def paint(axes: "Axes") -> None:
        estimates = {
            label: list(map(attainment, map(groups.get, names)))
            for label, groups in classes.items()
        }
        bars(axes, lines, estimates, names)
        axes.set(xlabel="SLO class", ylabel="SLO attainment (% of responses)")
        axes.set_ylim(0, 103)
        legend(axes, lines)

    where = f" At the last point of the axis ({NAMES[lines.axis]})." if lines.has_lines else ""
    note = f"Means over seeds with 95% intervals.{where}"
    return Picture("attainment", "SLO attainment by class", note, height(lines), paint)


def _over_time(
    lines: Simulated,
    name: str,
    title: str,
    label: str,
    series: Callable[[TimeSeries], Sequence[float | None]],
) -> Picture:
    def paint(axes: "Axes") -> None:
        for line in lines.lines:
            over_time = line.rows[-1].figures.over_time
            x = []
            y = []
            for at_s, value in zip(over_time.at_s, series(over_time), strict=True):
                if at_s is not None and value is not None:
                    x.append(at_s)
                    y.append(value)
            axes.plot(x, y, label=line.label, color=line.style.colour, linestyle=line.style.line)
        axes.set(xlabel="simulated time (s)", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        legend(axes, lines)

    note = "The first seed, each series at its last point; means over equal time spans, including the warm-up."
    return Picture(f"time_{name}", title, note, height(lines), paint)


def _capacity(lines: Searched, summary: CapacitySummary) -> Picture:
    published = [pair for pair in summary.published if pair.metric == "capacity" and pair.value]

    def paint(axes: "Axes") -> None:
        if lines.numeric:
            curves(axes, lines, lambda row: row.capacity, 1)
        else:
            names = list(dict.fromkeys(name for line in lines.lines for name in lines.names(line)))
            estimates: dict[str, list[Interval | None]] = {}
            for line in lines.lines:
                by_slo = dict(zip(lines.names(line), line.rows, strict=True))
                estimates[line.label] = [
                    by_slo[name].capacity if name in by_slo else None for name in names
                ]
            _mark_published(axes, published, names, bars(axes, lines, estimates, names))
        axes.set(xlabel=NAMES[lines.axis], ylabel=summary.unit)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        legend(axes, lines)

    marks = " Diamonds: published." if published else ""
    note = f"The highest load whose violation rate is at most epsilon; 95% intervals over seeds.{marks}"
    return Picture("capacity", "Capacity", note, height(lines), paint)


def _mark_published(
    axes: "Axes",
    published: Sequence[ComparedNumber],
    names: Sequence[str],
    middles: dict[tuple[str, int], float],
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
        axes.scatter(
            x, y, 42, marker="D", facecolors="white", edgecolors=BLACK, zorder=4, label=PUBLISHED
        )


def _most_first(lines: Searched) -> Searched:
    """Return the chart with the systems of the largest capacity at their first point first."""
    by_capacity = sorted(lines.lines, key=lambda line: -line.rows[0].capacity.mean)
    return replace(lines, lines=by_capacity)


def _tried_loads(lines: Searched, summary: CapacitySummary) -> Picture:
    epsilon = summary.rule.epsilon

    def paint(axes: "Axes") -> None:
        for line in lines.lines:
            style = line.style
            for row in line.rows:
                trials = [trial for seed in row.seeds for trial in seed.trials]
                points = sorted((trial.load, 100 * trial.rate) for trial in trials)
                if points:
                    axes.plot(
                        [load for load, _ in points],
                        [rate for _, rate in points],
                        marker=style.marker,
                        label=line.label if row is line.rows[0] else None,
                        color=style.colour,
                        linestyle="none",
                        markersize=4,
                        alpha=0.7,
                    )
        axes.axhline(
            100 * epsilon,
            color=BLACK,
            linewidth=1,
            linestyle=":",
            label=f"promise: at most {100 * epsilon:g}%",
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=summary.unit, ylabel="responses that break their SLO (%)")
        axes.set_ylim(-3, 103)
        axes.grid(alpha=0.3)
        legend(axes, lines)

    note = (
        f"Every load that was tried, under every SLO. Below the dotted line, at {100 * epsilon:g}%, a load counts as "
        "served; runs whose result was clear early were stopped early."
    )
    return Picture("tried", "Violation rates of all tried loads", note, height(lines), paint)
