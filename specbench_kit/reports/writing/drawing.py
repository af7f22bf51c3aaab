"""Drawing of figures, with names beside marks and values under the pointer, and writing them as
SVG, PNG and PDF.

Drawings from folders of others are reduced to what can neither run nor load anything.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from specbench_kit.core.errors import SkitError
from specbench_kit.core.files import replace_file
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.palette import GREY

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 4.8
"""Small enough to be read on a phone, and in one column of a paper."""
SIZES = {"screen": (WIDTH_IN, 9.0), "column": (3.15, 7.5), "page": (6.4, 8.0)}
"""Width in inches and font size in points: on a screen, and in one or both columns of an
article.
"""
TITLE_IN = 0.26
LINE_IN = 0.12
PNG_DPI = 200
PNG_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure to be drawn: `title` states what was measured, `note` explains how to read it."""

    name: str
    title: str
    note: str
    height_in: float
    draw: Callable[["Axes"], None]


def draw(
    picture: Picture,
    setting: str,
    formats: Sequence[str],
    *,
    bare: bool = False,
    size: str = "screen",
) -> dict[str, bytes]:
    """Return the figure's content by file suffix, with `setting` below its title; a `bare` figure
    has neither.
    """
    import matplotlib

    width_in, font_pt = SIZES[size]
    settings: dict[Any, Any] = {
        "svg.hashsalt": picture.name,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.size": font_pt,
        "legend.fontsize": max(7.0, font_pt - 1),
        "axes.titlesize": font_pt,
        "axes.axisbelow": True,
    }
    with matplotlib.rc_context(settings):
        subtitle = fill(setting, round(84 * width_in / WIDTH_IN))
        head_in = 0.0 if bare else TITLE_IN + LINE_IN * (1 + subtitle.count("\n"))
        height_in = picture.height_in + head_in
        figure = new_figure((width_in, height_in))
        layout: Any = figure.get_layout_engine()
        layout.set(rect=(0, 0, 1, 1 - head_in / height_in))
        axes = figure.subplots()
        picture.draw(axes)
        if not bare:
            title, below = picture.title, escaped(subtitle)
            title_y, below_y = 1 - 0.06 / height_in, 1 - TITLE_IN / height_in
            figure.text(0.5, title_y, title, fontsize=10, fontweight="bold", ha="center", va="top")
            figure.text(0.5, below_y, below, fontsize=7, color=GREY, ha="center", va="top")
        axes.spines[["top", "right"]].set_visible(False)
        # The figure is laid out once for all formats, so that none depends on which were written
        # before it.
        layout.execute(figure)
        if _break_labels(axes):
            layout.execute(figure)
        figure.set_layout_engine("none")
        return {
            suffix: rendered(figure, suffix, PNG_DPI if suffix == "png" else None)
            for suffix in formats
        }


def _break_labels(axes: "Axes") -> bool:
    """Break the labels of axes that reach beyond the figure into two lines; return whether there
    were any.

    A label is centred on its axis, which names beside the axes may make shorter than the label.
    """
    whole = axes.figure.bbox
    changed = False
    for axis in (axes.xaxis, axes.yaxis):
        text = axis.label.get_text()
        extent = axis.label.get_window_extent()
        if text and (
            extent.x0 < 0 or extent.y0 < 0 or extent.x1 > whole.x1 or extent.y1 > whole.y1
        ):
            halves = next(
                lines
                for size in range(len(text) // 2, len(text) + 1)
                if (lines := fill(text, size)).count("\n") < 2
            )
            axis.label.set_text(halves)
            changed = True
    return changed


def escaped(text: str) -> str:
    """Return text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


@contextmanager
def plot(
    path: Path,
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    formats: Sequence[str] = ("png", "svg"),
) -> Iterator[Any]:
    """Yield axes of a figure that is written in the formats when the context ends."""
    import matplotlib

    figure = new_figure(size)
    yield figure.subplots(rows, columns)
    settings: dict[Any, Any] = {"svg.hashsalt": path.stem, "svg.fonttype": "none"}
    try:
        with matplotlib.rc_context(settings):
            for suffix in formats:
                replace_file(path.with_suffix(f".{suffix}"), rendered(figure, suffix))
    except OSError as error:
        raise SkitError(f"cannot write {path}: {error.strerror or error}") from error


def new_figure(size: tuple[float, float]) -> "Figure":
    """Return an empty figure of this width and height in inches."""
    import matplotlib.figure

    return matplotlib.figure.Figure(figsize=size, dpi=130, layout="constrained")


def rendered(figure: "Figure", suffix: str, dpi: float | None = None) -> bytes:
    """Return the figure as a file's content, without a date, so that the same figure gives the same
    file.
    """
    # Each canvas is imported for its own format only, and called directly: `savefig` would draw
    # everything twice.
    content = BytesIO()
    canvas: Any
    if suffix == "svg":
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        texts = hover_texts(figure)
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(content, metadata={"Date": None})
        return titled(with_counted_ids(content.getvalue().decode()), texts).encode()
    if suffix == "pdf":
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        canvas = FigureCanvasPdf(figure)
        canvas.print_pdf(content, metadata={"CreationDate": None})
    else:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        figure.dpi = dpi or figure.dpi
        # The default level takes half as long again, and saves next to nothing.
        canvas.print_png(content, pil_kwargs={"compress_level": PNG_LEVEL})
    return content.getvalue()


DIGEST = re.compile(r'(?<=\bid=")([A-Za-z]*?(?:[0-9a-f]+_[0-9a-f]+_)?)([0-9a-f]{10})(?=")')
"""An id that matplotlib makes for a shape: letters for its kind, and the beginning of a digest."""


def with_counted_ids(svg: str) -> str:
    """Return the drawing with the ids of shapes counted in place of digests.

    matplotlib takes the digest over coordinates in full precision. The last bit of those depends on
    the processor, while all that is drawn is rounded to six places: the same figure would be
    another file on another machine.
    """
    names = {
        kind + digest: f"{kind}{number}"
        for number, (kind, digest) in enumerate(DIGEST.findall(svg), 1)
    }
    if not names:
        return svg
    return re.sub(rf'(?<=["#])({"|".join(names)})(?=["\)])', lambda written: names[written[1]], svg)


WIDE_SPAN = 20.0
"""The ratio of an axis's largest to its smallest value from which on its scale is logarithmic."""


def spans_much(values: Iterable[float]) -> bool:
    """Return whether values lie so far apart that one of them would press the others together on a
    linear axis.
    """
    numbers = list(values)
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= WIDE_SPAN


def logarithmic(axes: "Axes", name: str, marks: Sequence[float] = (1, 1.5, 2, 3, 5, 7)) -> None:
    """Give the axis `name` a logarithmic scale, labelled by plain numbers: `marks` times every
    power of ten.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=marks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

GAP_PT = 7.0
MARK_PT = 5.0
WIDTH = 0.62
HEIGHT = 1.25
"""Space for a letter and for a line, as multiples of the font size: a little more than they
need.
"""


def name_points(axes: "Axes", points: Mapping[str, tuple[float, float]]) -> bool:
    """Write each name beside its point; write nothing and return False if one would cover
    something.
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    figure: Any = axes.figure
    size_pt = float(FontProperties(size=rcParams["legend.fontsize"]).get_size_in_points())
    figure.get_layout_engine().execute(figure)
    scale = 72 / figure.dpi
    west, south, east, north = (edge * scale for edge in axes.bbox.extents)
    centres = {
        name: tuple(axes.transData.transform(point) * scale) for name, point in points.items()
    }
    occupied: list[Box] = [
        (x - MARK_PT, y - MARK_PT, x + MARK_PT, y + MARK_PT) for x, y in centres.values()
    ]
    offsets: dict[str, tuple[float, float]] = {}
    for name, (x, y) in centres.items():
        for box, offset in _positions(x, y, WIDTH * size_pt * len(name), HEIGHT * size_pt):
            inside = box[0] >= west and box[1] >= south and box[2] <= east and box[3] <= north
            covers = any(
                box[0] < mark[2] and mark[0] < box[2] and box[1] < mark[3] and mark[1] < box[3]
                for mark in occupied
            )
            if inside and not covers:
                occupied.append(box)
                offsets[name] = offset
                break
        else:
            return False
    for name, offset in offsets.items():
        axes.annotate(
            escaped(name),
            points[name],
            offset,
            textcoords="offset points",
            fontsize=size_pt,
            ha="left",
            va="center",
        )
    return True


def _positions(
    x: float, y: float, width: float, height: float
) -> Iterator[tuple[Box, tuple[float, float]]]:
    """Yield the boxes to the right, to the left, above and below a point, with the offset of the
    text's left end.
    """
    rise = GAP_PT + height / 2
    for across, up in (
        (GAP_PT, 0),
        (-GAP_PT - width, 0),
        (-width / 2, rise),
        (-width / 2, -rise),
        (0, rise),
        (0, -rise),
    ):
        start = x + across
        middle = y + up
        yield (start, middle - height / 2, start + width, middle + height / 2), (across, up)


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
    points: Iterable[tuple[float, float]] = getattr(
        artist, "get_xydata", getattr(artist, "get_offsets", list)
    )()
    x_name = axes.get_xlabel()
    y_name = axes.get_ylabel()
    return [
        f"{label}\n{x_name}: {significant(x)}\n{y_name}: {significant(y)}"
        for x, y in points
        if isfinite(x) and isfinite(y)
    ]


def titled(svg: str, texts: Mapping[str, Sequence[str]]) -> str:
    """Return the drawing with these texts; a mark of which some point is not drawn gets none."""
    first, *groups = svg.split(GROUP)
    return first + "".join(
        GROUP + _titled(group, texts.get(group.partition('"')[0], ())) for group in groups
    )


def _titled(group: str, texts: Sequence[str]) -> str:
    titles = [f"<title>{escape(text)}</title>" for text in texts]
    if len(titles) == 1:
        return group.replace(">", f">{titles[0]}", 1)
    # Points outside the axes are not drawn: then it is unknown which title belongs to which mark.
    if len(USE.findall(group)) != len(titles):
        return group
    remaining = iter(titles)
    return USE.sub(lambda use: f"<use {use[1]}>{next(remaining)}</use>", group)


NAMESPACE = "http://www.w3.org/2000/svg"
ELEMENTS = frozenset(
    (
        "svg",
        "g",
        "defs",
        "path",
        "use",
        "clipPath",
        "pattern",
        "rect",
        "line",
        "circle",
        "polygon",
        "text",
        "tspan",
    )
)
SHAPES = (
    "x",
    "y",
    "width",
    "height",
    "d",
    "points",
    "r",
    "cx",
    "cy",
    "viewBox",
    "transform",
    "patternUnits",
)
LOOKS = ("style", "class", "fill", "fill-opacity", "stroke", "stroke-width", "opacity", "clip-path")
ATTRIBUTES = frozenset(("id", "href", *SHAPES, *LOOKS))
EXTERNAL = re.compile(r"url\(\s*['\"]?(?!#)|image-set|\\|@", re.IGNORECASE)
"""Parts of a style that could load something from outside the drawing, openly or by escapes."""


def safe_svg(content: bytes) -> bytes:
    """Return the drawing's shapes and texts; raise ValueError if it is no drawing."""
    try:
        # What precedes the drawing could define entities that grow without bounds.
        root = ElementTree.fromstring("<svg" + content.decode().partition("<svg")[2])
        for element in list(root.iter()):
            for child in list(element):
                if _local(child.tag) not in ELEMENTS:
                    element.remove(child)
            element.tag = _local(element.tag)
            attributes = {_local(name): value for name, value in element.attrib.items()}
            element.attrib = {
                name: value
                for name, value in attributes.items()
                if name in ATTRIBUTES
                and not EXTERNAL.search(value)
                and (name != "href" or value.startswith("#"))
            }
        root.set("xmlns", NAMESPACE)
        return ElementTree.tostring(root)
    except (ElementTree.ParseError, RecursionError, UnicodeError) as error:
        raise ValueError(f"not a drawing ({error})") from error


def _local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition("}")[2]
