"""The figure of a page on published experiments: how many predicted numbers come out, by experiment or by paper."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.reports.writing.palette import BLACK, COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.24
FRAME_IN = 0.8
NOTE = "Full bars: all predicted numbers; filled: those within the goal. Fitted numbers and inputs do not count."


def drawing(name: str, counts: Mapping[str, tuple[int, int]], setting: str) -> bytes:
    """Return an SVG with a bar for each name: how many of its predicted numbers come out, and of how many."""

    def paint(axes: "Axes") -> None:
        for row, (within, compared) in enumerate(counts.values()):
            axes.barh(row, compared, 0.7, facecolor="none", edgecolor=GREY)
            axes.barh(row, within, 0.7, color=COLOURS[0])
            label = f"{within} of {compared}"
            axes.annotate(label, (compared, row), (4, 0), textcoords="offset points", va="center", color=BLACK)
        axes.set_yticks(range(len(counts)), list(counts))
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.set_xlabel("predicted numbers")

    picture = Picture(name, "Predictions that come out", NOTE, FRAME_IN + ROW_IN * max(2, len(counts)), paint)
    return draw(picture, setting, ("svg",))["svg"]
