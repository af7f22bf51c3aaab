"""How figures are drawn and written."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.reports.writing.hover import shown, titled
from specbench_kit.reports.writing.palette import GREY
from specbench_kit.runs.folder import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 4.8
"""Small enough to be read on a phone, and in one column of a paper."""
SIZES = {"screen": (WIDTH_IN, 9.0), "column": (3.15, 7.5), "page": (6.4, 8.0)}
"""Width in inches and letters in points: on a screen, and in one or both columns of an article."""
TITLE_IN, LINE_IN = 0.26, 0.12
PNG_DPI = 200


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure to be drawn: `title` says what was measured, `note` how it is to be read."""

    name: str
    title: str
    note: str
    height_in: float
    draw: Callable[["Axes"], None]


def draw(
    picture: Picture, where: str, formats: Sequence[str], *, bare: bool = False, size: str = "screen"
) -> dict[str, bytes]:
    """The figure's content by file suffix; `where` says on what it was measured, unless the figure is `bare`."""
    import matplotlib

    width_in, letters_pt = SIZES[size]
    settings: dict[Any, Any] = {
        "svg.hashsalt": picture.name,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "font.size": letters_pt,
        "legend.fontsize": max(7.0, letters_pt - 1),
        "axes.titlesize": letters_pt,
    }
    with matplotlib.rc_context(settings):
        place = fill(where, round(84 * width_in / WIDTH_IN))
        head_in = 0.0 if bare else TITLE_IN + LINE_IN * (1 + place.count("\n"))
        height_in = picture.height_in + head_in
        figure = new_figure((width_in, height_in))
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head_in / height_in))
        axes = figure.subplots()
        picture.draw(axes)
        if not bare:
            _head(figure, picture.title, place, height_in)
        axes.spines[["top", "right"]].set_visible(False)
        settle(figure)
        return {suffix: rendered(figure, suffix, PNG_DPI if suffix == "png" else None) for suffix in formats}


def _head(figure: Any, title: str, place: str, height_in: float) -> None:
    centred: dict[str, Any] = {"ha": "center", "va": "top"}
    figure.text(0.5, 1 - 0.06 / height_in, title, fontsize=10, fontweight="bold", **centred)
    figure.text(0.5, 1 - TITLE_IN / height_in, plain(place), fontsize=7, color=GREY, **centred)


def plain(text: str) -> str:
    """Text that matplotlib takes for no formula."""
    return text.replace("$", r"\$")


@contextmanager
def plot(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, formats: Sequence[str] = ("png",)
) -> Iterator[Any]:
    """Axes of a figure that is written when the context is left."""
    figure = new_figure(size)
    yield figure.subplots(rows, columns)
    try:
        for suffix in formats:
            replace_file(path.with_suffix(f".{suffix}"), rendered(figure, suffix))
    except OSError as error:
        raise SkitError(f"cannot write {path}: {error.strerror or error}") from error


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure, in inches."""
    import matplotlib.figure

    return matplotlib.figure.Figure(figsize=size, dpi=130, layout="constrained")


def settle(figure: Any) -> None:
    """Lay the figure out once for all formats, so that none depends on which were written before it."""
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")


def rendered(figure: Any, suffix: str, dpi: float | None = None) -> bytes:
    """The figure as a file's content, without a date, so that the same figure gives the same file.

    `savefig` would draw everything twice.
    """
    content = BytesIO()
    texts = shown(figure) if suffix == "svg" else {}
    canvas = _canvas(suffix)(figure)
    if suffix == "svg":
        canvas.print_svg(content, metadata={"Date": None})
    elif suffix == "pdf":
        canvas.print_pdf(content, metadata={"CreationDate": None})
    else:
        figure.dpi = dpi or figure.dpi
        canvas.print_png(content)
    return titled(content.getvalue().decode(), texts).encode() if texts else content.getvalue()


def _canvas(suffix: str) -> Any:
    """What draws a format; what draws another is not loaded."""
    if suffix == "svg":
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        return FigureCanvasSVG
    if suffix == "pdf":
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        return FigureCanvasPdf
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg


def logarithmic(axes: "Axes", name: str, marks: Sequence[float] = (1, 1.5, 2, 3, 5, 7)) -> None:
    """A scale marked by plain numbers: `marks` times every power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=marks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
