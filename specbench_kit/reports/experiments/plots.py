"""What each assumed input does to every published number, as one figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.writing.drawing import Picture, draw, logarithmic
from specbench_kit.reports.writing.palette import COLOURS, GREY, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]
FORMATS = ("svg",)
ROW_IN = 0.34


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
        logarithmic(axes, "x", (1, 1.2, 1.5, 2, 3, 5, 7, 8, 9))
        axes.set_xlabel("ours / published: a line from here to where the input moves it", fontsize=7)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.3, -0.1 - 0.5 / len(moves)), ncol=2, fontsize=6, frameon=False
        )

    name = found["name"].replace("/", "-")
    height_in = 0.9 + ROW_IN * len(moves) + 0.08 * len(names)
    picture = Picture(name, f"{found['name']}: what the assumed inputs do", "", height_in, paint)
    return draw(picture, found["source"], FORMATS)["svg"]
