"""The figure of what each assumed input does to every published number."""

from typing import TYPE_CHECKING

from specbench_kit.reports.stored import Summary
from specbench_kit.reports.writing.drawing import Picture, draw, logarithmic
from specbench_kit.reports.writing.palette import COLOURS, GREY, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN, LINE_IN, LEGEND_IN = 0.34, 0.05, 0.15
"""The least height of an input's value, of one number's line in it, and of a line of the legend."""
TICKS_OF_NARROW, TICKS_OF_WIDE, WIDE_SPAN = (1, 1.2, 1.5, 2, 3, 5, 7, 8, 9), (1, 2, 3, 5, 7), 3.0
"""Ticks per power of ten; the axis is wide if its largest ratio is over `WIDE_SPAN` times the smallest."""


def sensitivity(result: Summary) -> bytes:
    """Return an SVG with a row for each value of each input and an arrow for every published number."""
    moves = result["sensitivity"]
    names = list(dict.fromkeys(name for move in moves for name in move["ratios"]))
    ratios = [ratio for move in moves for pair in move["ratios"].values() for ratio in pair if ratio > 0]
    narrow = not ratios or max(ratios) / min(ratios) < WIDE_SPAN

    def paint(axes: "Axes") -> None:
        for index, name in enumerate(names):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
            for row, move in enumerate(moves):
                if name in move["ratios"]:
                    y = row + 0.7 * ((index + 0.5) / len(names) - 0.5)
                    axes.plot(move["ratios"][name], [y, y], color=colour, linewidth=1)
                    axes.plot(move["ratios"][name][1], y, marker=marker, markersize=3, color=colour)
            axes.plot([], [], color=colour, marker=marker, markersize=3, label=name.replace("figures.overall.", ""))
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(moves)), [f"{move['name']}: {move['value']}"[:44] for move in moves], fontsize=7)
        axes.invert_yaxis()
        logarithmic(axes, "x", TICKS_OF_NARROW if narrow else TICKS_OF_WIDE)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel("simulated / published, and where the input moves it", fontsize=7)
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=6, frameon=False)

    height_in = 0.7 + max(ROW_IN, LINE_IN * len(names)) * len(moves) + LEGEND_IN * len(names) / 2
    title = f"{result['name']}: effect of the assumed inputs"
    picture = Picture(result["name"].replace("/", "-"), title, "", height_in, paint)
    return draw(picture, result["source"], ("svg",))["svg"]
