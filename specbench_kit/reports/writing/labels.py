"""Names beside the marks of a figure, in place of a legend, where they fit."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.writing.drawing import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

GAP_PT = 7.0
MARK_PT = 5.0
WIDTH, HEIGHT = 0.62, 1.25
"""Space for a letter and for a line, as multiples of the font size: a little more than they need."""


def name_points(axes: "Axes", points: Mapping[str, tuple[float, float]]) -> bool:
    """Write each name beside its point; write nothing and return False if one would cover something."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    figure: Any = axes.figure
    size_pt = float(FontProperties(size=rcParams["legend.fontsize"]).get_size_in_points())
    figure.get_layout_engine().execute(figure)
    scale = 72 / figure.dpi
    west, south, east, north = (edge * scale for edge in axes.bbox.extents)
    centres = {name: tuple(axes.transData.transform(point) * scale) for name, point in points.items()}
    occupied: list[Box] = [(x - MARK_PT, y - MARK_PT, x + MARK_PT, y + MARK_PT) for x, y in centres.values()]
    offsets: dict[str, tuple[float, float]] = {}
    for name, (x, y) in centres.items():
        for box, offset in _positions(x, y, WIDTH * size_pt * len(name), HEIGHT * size_pt):
            inside = box[0] >= west and box[1] >= south and box[2] <= east and box[3] <= north
            covers = any(
                box[0] < mark[2] and mark[0] < box[2] and box[1] < mark[3] and mark[1] < box[3] for mark in occupied
            )
            if inside and not covers:
                occupied.append(box)
                offsets[name] = offset
                break
        else:
            return False
    for name, offset in offsets.items():
        axes.annotate(
            escaped(name), points[name], offset, textcoords="offset points", fontsize=size_pt, ha="left", va="center"
        )
    return True


def _positions(x: float, y: float, width: float, height: float) -> Iterator[tuple[Box, tuple[float, float]]]:
    """Yield the boxes to the right, to the left, above and below a point, with the offset of the text's left end."""
    rise = GAP_PT + height / 2
    for across, up in (
        (GAP_PT, 0),
        (-GAP_PT - width, 0),
        (-width / 2, rise),
        (-width / 2, -rise),
        (0, rise),
        (0, -rise),
    ):
        start, middle = x + across, y + up
        yield (start, middle - height / 2, start + width, middle + height / 2), (across, up)
