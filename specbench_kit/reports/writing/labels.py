"""Names beside the marks of a figure, in place of a legend, where they fit."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.writing.drawing import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

GAP_PT = 7.0
MARK_PT = 5.0
WIDE, HIGH = 0.62, 1.25
"""Of a letter and of a line, as multiples of the letters' size: a little more than they take."""


def name_points(axes: "Axes", points: Mapping[str, tuple[float, float]]) -> bool:
    """Write each name beside its point; False, and nothing written, where one would lie upon something."""
    figure: Any = axes.figure
    size_pt = _letters()
    figure.get_layout_engine().execute(figure)
    scale = 72 / figure.dpi
    room = tuple(edge * scale for edge in axes.bbox.extents)
    places = {name: tuple(axes.transData.transform(point) * scale) for name, point in points.items()}
    taken = [_around(place) for place in places.values()]
    chosen: dict[str, tuple[float, float]] = {}
    for name, place in places.items():
        width, height = WIDE * size_pt * len(name), HIGH * size_pt
        for box, offset in _beside(place, width, height):
            if _inside(box, room) and not any(_meet(box, other) for other in taken):
                taken.append(box)
                chosen[name] = offset
                break
        else:
            return False
    for name, offset in chosen.items():
        axes.annotate(
            plain(name), points[name], offset, textcoords="offset points", fontsize=size_pt, ha="left", va="center"
        )
    return True


def _letters() -> float:
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    return float(FontProperties(size=rcParams["legend.fontsize"]).get_size_in_points())


def _around(place: Any) -> Box:
    x, y = place
    return x - MARK_PT, y - MARK_PT, x + MARK_PT, y + MARK_PT


def _beside(place: Any, width: float, height: float) -> Iterator[tuple[Box, tuple[float, float]]]:
    """To the right, to the left, above and below, with how far the text's left end lies from the point."""
    x, y = place
    rise = GAP_PT + height / 2
    for across, up in (
        (GAP_PT, 0),
        (-GAP_PT - width, 0),
        (-width / 2, rise),
        (-width / 2, -rise),
        (0, rise),
        (0, -rise),
    ):
        left, middle = x + across, y + up
        yield (left, middle - height / 2, left + width, middle + height / 2), (across, up)


def _inside(box: Box, room: Any) -> bool:
    return bool(box[0] >= room[0] and box[1] >= room[1] and box[2] <= room[2] and box[3] <= room[3])


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
