"""What figures of simulations share: curves with their intervals, bars, frames and legends."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.reports.serving.lines import NAMES, Chart, Line
from specbench_kit.reports.writing.palette import BLACK, GREY, HATCHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]
Figure = Callable[[Fields], Fields | None]

PUBLISHED = "published"
HEIGHT_IN = 3.0
LEGEND_IN = 0.16
LOGARITHMIC_SPAN = 20
"""Of an axis whose largest value is so many times its smallest."""


def curves(axes: "Axes", lines: Chart, figure: str | Figure, scale: float, *, faint: bool = False) -> None:
    """A line for each, or a bar where there is one place only; faint ones stand beside the others, unnamed.

    `figure` is where a row holds the estimate, or what makes one of a row.
    """
    read = figure if callable(figure) else partial(look_up, path=figure)
    for number, line in enumerate(lines.lines):
        found = [(x, read(row)) for x, row in zip(_positions(lines, line), line.rows, strict=True)]
        there = [(x, one) for x, one in found if one is not None and one["mean"] is not None]
        if not there:
            continue
        x = [place if lines.several else number + (0.2 if faint else -0.2) for place, _ in there]
        y = [scale * one["mean"] for _, one in there]
        if lines.several:
            axes.plot(x, y, label=None if faint else line.label, **_look(line, faint=faint))
        else:
            axes.bar(x, y, 0.38, color=line.style.colour, edgecolor=BLACK, linewidth=0.5, alpha=0.4 if faint else 1)
        if not faint and all(one["low"] is not None for _, one in there):
            _intervals(axes, line, x, *([scale * one[end] for _, one in there] for end in ("low", "high")))


def _intervals(axes: "Axes", line: Line, x: Sequence[Any], low: Sequence[float], high: Sequence[float]) -> None:
    if len(x) > 1:
        axes.fill_between(x, low, high, color=line.style.colour, alpha=0.15, linewidth=0)
        axes.vlines(x, low, high, color=line.style.colour, linewidth=1)
    else:
        axes.vlines(x, low, high, color=BLACK, linewidth=1)


def _look(line: Line, *, faint: bool = False) -> dict[str, Any]:
    look = {"color": line.style.colour, "linestyle": line.style.line, "marker": line.style.marker, "markersize": 4}
    return {**look, "alpha": 0.4, "markersize": 3} if faint else look


def _positions(lines: Chart, line: Line) -> list[Any]:
    return lines.x(line) if lines.numeric else [str(value) for value in lines.x(line)]


def bars(
    axes: "Axes", lines: Chart, found: Mapping[str, Sequence[Fields | None]], names: Sequence[str]
) -> dict[tuple[str, int], float]:
    """Groups of bars with intervals; where each bar's middle is."""
    width, places = 0.8 / len(lines.lines), {}
    for number, line in enumerate(lines.lines):
        for group, one in enumerate(found[line.label]):
            middle = group + (number - (len(lines.lines) - 1) / 2) * width
            places[line.label, group] = middle
            if one is None:
                continue
            style: dict[str, Any] = {"color": line.style.colour, "edgecolor": BLACK, "linewidth": 0.5}
            hatch = HATCHES[number % len(HATCHES)]
            axes.bar([middle], [one["mean"]], width * 0.92, hatch=hatch, label=None if group else line.label, **style)
            if one["low"] is not None:
                axes.vlines([middle], [one["low"]], [one["high"]], color=BLACK, linewidth=1)
    axes.set_xticks(range(len(names)), list(names))
    return places


def frame(axes: "Axes", lines: Chart, metric: str, top: float | None = None) -> None:
    axes.set(ylabel=metric)
    axes.set_ylim(bottom=0, top=top)
    axes.grid(alpha=0.3, color=GREY, axis="both" if lines.several else "y")
    if not lines.several:
        axes.set_xticks(range(len(lines.lines)), [line.label for line in lines.lines])
        return
    axes.set_xlabel(NAMES[lines.axis])
    values = [x for line in lines.lines for x in lines.x(line)]
    if lines.numeric and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_SPAN:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    legend(axes, lines)


def legend(axes: "Axes", lines: Chart) -> None:
    """Below the axes, where it hides nothing."""
    named = zip(*axes.get_legend_handles_labels(), strict=True)
    handles = zip(*sorted(named, key=lambda one: one[1] == PUBLISHED), strict=True)
    look: dict[str, Any] = {"ncols": _columns(lines), "fontsize": 7, "frameon": False}
    axes.figure.legend(*handles, loc="outside lower center", **look)


def _columns(lines: Chart) -> int:
    longest = max(len(line.label) for line in lines.lines)
    return 3 if longest <= 16 else 2 if longest <= 30 else 1


def height(lines: Chart) -> float:
    return HEIGHT_IN + LEGEND_IN * -(-(len(lines.lines) + 1) // _columns(lines))
