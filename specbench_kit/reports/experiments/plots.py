"""What each assumed input does to every published number, as one figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.writing.drawing import Picture, draw, logarithmic
from specbench_kit.reports.writing.palette import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]
FORMATS = ("svg",)
ROW_IN = 0.34


def sensitivity(found: Fields) -> bytes:
    """An SVG: a row for each value of each input, and an arrow for every published number."""
    moves: Sequence[Fields] = found["sensitivity"]

    def paint(axes: "Axes") -> None:
        for row, move in enumerate(moves):
            names = list(move["ratios"])
            for place, (before, after) in enumerate(move["ratios"].values()):
                at = row + 0.6 * ((place + 0.5) / len(names) - 0.5)
                colour = COLOURS[place % (len(COLOURS) - 1)]
                axes.plot([before, after], [at, at], color=colour, linewidth=1)
                axes.plot([after], [at], marker="o", markersize=3, color=colour)
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(moves)), [f"{move['name']}: {move['value']}"[:44] for move in moves], fontsize=7)
        axes.invert_yaxis()
        logarithmic(axes, "x")
        axes.set_xlabel("ours over the published number; the dot is where the input moves it")

    name = found["name"].replace("/", "-")
    picture = Picture(name, f"{found['name']}: what the assumed inputs do", "", 0.8 + ROW_IN * len(moves), paint)
    return draw(picture, found["source"], FORMATS)["svg"]
