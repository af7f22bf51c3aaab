"""Values that a drawing shows under the pointer: SVG titles, which need no script."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from specbench_kit.reports.writing.formatting import significant

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP = '<g id="'
USE = re.compile(r"<use ([^>]*)/>")


def set_hover(artists: "Iterable[Artist]", text: str) -> None:
    """Set the text that marks show in place of their coordinates."""
    for artist in artists:
        artist.hover = text  # type: ignore[attr-defined]


def hover_texts(figure: "Figure") -> dict[str, Sequence[str]]:
    """Return by the id of each mark one text for the whole mark, or one for each of its points.

    Marks without an id get one.
    """
    texts_by_id: dict[str, Sequence[str]] = {}
    for number, axes in enumerate(figure.axes):
        for index, artist in enumerate(axes.get_children()):
            text = getattr(artist, "hover", None)
            texts = [text] if text else _point_texts(axes, artist)
            if texts:
                name = artist.get_gid() or f"mark-{number}--{index}"
                artist.set_gid(name)
                texts_by_id[name] = texts
    return texts_by_id


def _point_texts(axes: "Axes", artist: "Artist") -> list[str]:
    """Return the coordinates of a line's or a cloud's points, if a legend or a label names it."""
    label = str(artist.get_label()).replace("\n", " ").replace(r"\$", "$")
    if label.startswith("_"):
        return []
    points: Iterable[tuple[float, float]] = getattr(artist, "get_xydata", getattr(artist, "get_offsets", list))()
    x_name, y_name = axes.get_xlabel(), axes.get_ylabel()
    return [
        f"{label}\n{x_name}: {significant(x)}\n{y_name}: {significant(y)}"
        for x, y in points
        if isfinite(x) and isfinite(y)
    ]


def titled(svg: str, texts: Mapping[str, Sequence[str]]) -> str:
    """Return the drawing with these texts; a mark of which some point is not drawn gets none."""
    first, *groups = svg.split(GROUP)
    return first + "".join(GROUP + _titled(group, texts.get(group.partition('"')[0], ())) for group in groups)


def _titled(group: str, texts: Sequence[str]) -> str:
    titles = [f"<title>{escape(text)}</title>" for text in texts]
    if len(titles) == 1:
        return group.replace(">", f">{titles[0]}", 1)
    # Points outside the axes are not drawn: then it is unknown which title belongs to which mark.
    if len(USE.findall(group)) != len(titles):
        return group
    remaining = iter(titles)
    return USE.sub(lambda use: f"<use {use[1]}>{next(remaining)}</use>", group)
