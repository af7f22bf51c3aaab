"""The picture of `skit ab`: how much faster the second server is, in every figure and at every load."""

from typing import TYPE_CHECKING

from specbench_kit.metrics.ab.summary import FIGURES, AbSummary
from specbench_kit.metrics.verdicts import FASTER, SLOWER
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import times
from specbench_kit.reports.writing.palette import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, _, GREEN, RED = COLOURS[:4]
ROW_IN = 0.26
NOTE = (
    "Ratios above 1 mean that the second server is faster. Lines are intervals that hold jointly with 95% confidence: "
    "one that crosses 1 shows no difference."
)


def ratios(summary: AbSummary) -> Picture:
    """Return the picture of all ratios with their intervals."""
    entries = [
        (load.load, entry, entry.ratio)
        for load in summary.loads
        for entry in load.comparisons
        if entry.ratio is not None and entry.figure != "acceptance"
    ]
    first, second = summary.names

    def draw(axes: "Axes") -> None:
        labels = []
        for row, (load, entry, ratio) in enumerate(entries):
            colour = {FASTER: GREEN, SLOWER: RED}.get(entry.verdict, GREY)
            low, high = entry.interval or (ratio, ratio)
            axes.plot([low, high], [row, row], color=colour, linewidth=2)
            axes.plot([ratio], [row], "o", color=colour, markersize=5)
            axes.annotate(times(ratio), (high, row), (6, 0), textcoords="offset points", va="center")
            labels.append(f"{FIGURES[entry.figure]}, {load}")
        axes.axvline(1, color=BLUE, linewidth=1, linestyle="--")
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        logarithmic(axes, "x")
        axes.margins(x=0.15)
        axes.set_xlabel(f"how many times as fast {second} is as {first}")

    height_in = 0.8 + ROW_IN * max(2, len(entries))
    return Picture("ratios", f"{second} against {first}", NOTE, height_in, draw)
