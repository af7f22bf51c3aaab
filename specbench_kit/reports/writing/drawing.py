"""Drawing of figures, and writing them as SVG, PNG and PDF."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.reports.writing.hover import hover_texts, titled
from specbench_kit.reports.writing.palette import GREY
from specbench_kit.runs.folder import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 4.8
"""Small enough to be read on a phone, and in one column of a paper."""
SIZES = {"screen": (WIDTH_IN, 9.0), "column": (3.15, 7.5), "page": (6.4, 8.0)}
"""Width in inches and font size in points: on a screen, and in one or both columns of an article."""
TITLE_IN, LINE_IN = 0.26, 0.12
PNG_DPI, PNG_LEVEL = 200, 1


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure to be drawn: `title` states what was measured, `note` explains how to read it."""

    name: str
    title: str
    note: str
    height_in: float
    draw: Callable[["Axes"], None]


def draw(
    picture: Picture, setting: str, formats: Sequence[str], *, bare: bool = False, size: str = "screen"
) -> dict[str, bytes]:
    """Return the figure's content by file suffix, with `setting` below its title; a `bare` figure has neither."""
    import matplotlib

    width_in, font_pt = SIZES[size]
    settings: dict[Any, Any] = {
        "svg.hashsalt": picture.name,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.size": font_pt,
        "legend.fontsize": max(7.0, font_pt - 1),
        "axes.titlesize": font_pt,
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
            centred: dict[str, Any] = {"ha": "center", "va": "top"}
            figure.text(0.5, 1 - 0.06 / height_in, picture.title, fontsize=10, fontweight="bold", **centred)
            figure.text(0.5, 1 - TITLE_IN / height_in, escaped(subtitle), fontsize=7, color=GREY, **centred)
        axes.spines[["top", "right"]].set_visible(False)
        # The figure is laid out once for all formats, so that none depends on which were written before it.
        layout.execute(figure)
        figure.set_layout_engine("none")
        return {suffix: rendered(figure, suffix, PNG_DPI if suffix == "png" else None) for suffix in formats}


def escaped(text: str) -> str:
    """Return text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


@contextmanager
def plot(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, formats: Sequence[str] = ("png",)
) -> Iterator[Any]:
    """Yield axes of a figure that is written when the context ends."""
    figure = new_figure(size)
    yield figure.subplots(rows, columns)
    try:
        for suffix in formats:
            replace_file(path.with_suffix(f".{suffix}"), rendered(figure, suffix))
    except OSError as error:
        raise SkitError(f"cannot write {path}: {error.strerror or error}") from error


def new_figure(size: tuple[float, float]) -> "Figure":
    """Return an empty figure of this width and height in inches."""
    import matplotlib.figure

    return matplotlib.figure.Figure(figsize=size, dpi=130, layout="constrained")


def rendered(figure: "Figure", suffix: str, dpi: float | None = None) -> bytes:
    """Return the figure as a file's content, without a date, so that the same figure gives the same file."""
    # Each canvas is imported for its own format only, and called directly: `savefig` would draw everything twice.
    content = BytesIO()
    canvas: Any
    if suffix == "svg":
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        texts = hover_texts(figure)
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(content, metadata={"Date": None})
        return titled(content.getvalue().decode(), texts).encode() if texts else content.getvalue()
    if suffix == "pdf":
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        canvas = FigureCanvasPdf(figure)
        canvas.print_pdf(content, metadata={"CreationDate": None})
    else:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        figure.dpi = dpi or figure.dpi
        # The default level takes four times as long, and saves a tenth of the bytes.
        canvas.print_png(content, pil_kwargs={"compress_level": PNG_LEVEL})
    return content.getvalue()


def logarithmic(axes: "Axes", name: str, marks: Sequence[float] = (1, 1.5, 2, 3, 5, 7)) -> None:
    """Give the axis `name` a logarithmic scale, labelled by plain numbers: `marks` times every power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=marks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
