"""Single changes of an experiment's inputs beside each other, and one after the other, as steps towards
the printed numbers.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from specbench_kit.papers.experiment import Steps
from specbench_kit.reports.document import Cell, Column, Table
from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.reports.writing.palette import BLACK, COLOURS, GREY, MARKERS
from specbench_kit.studies.reproduction.wording import ReproducedExperiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.27
FRAME_IN = 1.3
NOTE = (
    "Bars go from the mean before a change to the mean after it: above the gap of one change of the first row each, "
    "below it of one change after the other. Marks are the classes; the dashed line is the printed mean, the band "
    "holds the printed numbers."
)


def found_at(result: ReproducedExperiment, steps: Steps) -> dict[str, dict[str, float]]:
    """Return the ratio of both series at every point of the steps, by the value of the axis `by`; points
    at which either has no number are left out.
    """
    figures = {
        (pair.series, str(pair.where[steps.axis]), str(pair.where[steps.by])): pair.simulated.mean
        for pair in result.published
        if pair.metric == steps.metric and pair.simulated
    }
    found: dict[str, dict[str, float]] = {}
    for (series, point, value), figure in figures.items():
        over = figures.get((steps.over, point, value))
        if series == steps.series and over:
            found.setdefault(point, {})[value] = figure / over
    return found


def gap_closed(before: float, after: float, printed: float) -> float:
    """Return the share of the gap between `before` and the printed number that a change closes."""
    return (after - before) / (printed - before)


def steps_table(result: ReproducedExperiment, steps: Steps) -> Table:
    """Return a row for every point: what changes, the numbers, their mean, and the share of the gap that
    is closed.
    """
    found = found_at(result, steps)
    printed = fmean(steps.printed.values())
    first = fmean(found[steps.first].values())
    kinds = [("", steps.first)]
    kinds += [("alone", name) for name in steps.single]
    kinds += [("in turn", name) for name in steps.cumulative if name not in steps.single]
    rows: list[Sequence[Cell]] = []
    for kind, name in kinds:
        mean = fmean(found[name].values())
        closed = "" if name == steps.first else f"{gap_closed(first, mean, printed):.0%}"
        rows.append((name, kind, *found[name].values(), mean, closed))
    rows.append(("printed", "", *steps.printed.values(), printed, ""))
    columns = [
        Column("change"),
        Column("alone or in turn"),
        *(Column(name, "times") for name in steps.printed),
        Column("mean", "times"),
        Column("of the gap closed"),
    ]
    return Table(columns, rows)


def steps_picture(
    name: str, setting: str, found: Mapping[str, Mapping[str, float]], steps: Steps
) -> bytes:
    """Return an SVG of the steps, a bar from the mean before each change to the mean after it."""
    means = {point: fmean(values.values()) for point, values in found.items()}
    printed = fmean(steps.printed.values())
    rows = [(steps.first, 0.0, means[steps.first])]
    rows += [(point, means[steps.first], means[point]) for point in steps.single]
    before = (steps.first, *steps.cumulative)
    in_turn = [
        (point, means[earlier], means[point])
        for earlier, point in zip(before, steps.cumulative, strict=False)
    ]

    def paint(axes: "Axes") -> None:
        axes.axvspan(
            min(steps.printed.values()), max(steps.printed.values()), color=GREY, alpha=0.2
        )
        axes.axvline(printed, color=BLACK, linewidth=0.8, linestyle="--")
        labels = []
        places = [*range(len(rows)), *(len(rows) + 0.7 + place for place in range(len(in_turn)))]
        for place, (point, start, end) in zip(places, [*rows, *in_turn], strict=True):
            colour = COLOURS[0] if end >= start else COLOURS[1]
            axes.barh(place, end - start, 0.62, left=start, color=colour, alpha=0.55)
            for index, value in enumerate(found[point].values()):
                axes.plot(value, place, marker=MARKERS[index], markersize=3.5, color=BLACK)
            labels.append(point)
        for index, label in enumerate(steps.printed):
            axes.plot([], [], "k", linestyle="", marker=MARKERS[index], markersize=3.5, label=label)
        axes.set_yticks(places, labels, fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(steps.unit, fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        axes.figure.legend(loc="outside lower center", ncols=4, fontsize=7, frameon=False)

    height_in = FRAME_IN + ROW_IN * (len(rows) + len(in_turn))
    title = f"{name}: from as printed to the printed numbers"
    picture = Picture(f"{name.replace('/', '-')}-steps", title, "", height_in, paint)
    return draw(picture, setting, ("svg",))["svg"]
