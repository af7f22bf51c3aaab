"""What each assumed input does to every published number, as one figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.writing.drawing import Picture, draw, logarithmic
from specbench_kit.reports.writing.palette import COLOURS, GREY, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]
FORMATS = ("svg",)
ROW_IN, LINE_IN, LEGEND_IN = 0.34, 0.05, 0.15
"""At least for an input's value, for each number beside it, and for a line of the legend."""
NARROW, WIDE, WIDE_SPAN = (1, 1.2, 1.5, 2, 3, 5, 7, 8, 9), (1, 2, 3, 5, 7), 3.0
"""Marks of the axis, by the largest ratio over the least."""


def sensitivity(found: Fields) -> bytes:
    """An SVG: a row for each value of each input, and an arrow for every published number."""
    moves: Sequence[Fields] = found["sensitivity"]

    names = list(dict.fromkeys(name for move in moves for name in move["ratios"]))

    def paint(axes: "Axes") -> None:
        for place, name in enumerate(names):
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS) % len(MARKERS)]
            for row, move in enumerate(moves):
                if name in move["ratios"]:
                    at = row + 0.7 * ((place + 0.5) / len(names) - 0.5)
                    axes.plot(move["ratios"][name], [at, at], color=colour, linewidth=1)
                    axes.plot(move["ratios"][name][1], at, marker=marker, markersize=3, color=colour)
            axes.plot([], [], color=colour, marker=marker, markersize=3, label=name.replace("figures.overall.", ""))
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(moves)), [f"{move['name']}: {move['value']}"[:44] for move in moves], fontsize=7)
        axes.invert_yaxis()
        logarithmic(axes, "x", NARROW if _span(moves) < WIDE_SPAN else WIDE)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel("ours / published, and where the input moves it", fontsize=7)
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=6, frameon=False)

    name = found["name"].replace("/", "-")
    height_in = 0.7 + max(ROW_IN, LINE_IN * len(names)) * len(moves) + LEGEND_IN * len(names) / 2
    picture = Picture(name, f"{found['name']}: what the assumed inputs do", "", height_in, paint)
    return draw(picture, found["source"], FORMATS)["svg"]


def _span(moves: Sequence[Fields]) -> float:
    ratios = [ratio for move in moves for pair in move["ratios"].values() for ratio in pair if ratio > 0]
    return max(ratios) / min(ratios) if ratios else 1.0
