"""What the figures of a comparison share: the rows that they draw, and the looks of rows."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypedDict

from specbench_kit.metrics.result import Comparison, Curves
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.reports.writing.drawing import escaped, set_hover
from specbench_kit.reports.writing.palette import BASELINE_STYLE, BOUND_STYLE, Style, method_styles

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

ROW_IN = 0.34
LABEL_CHARACTERS = 22


@dataclass(frozen=True, slots=True)
class Scene:
    """The rows of a comparison that a figure draws, in their order, each with its style.

    `speculating` are the labels of rows with drafts, `bounds` those of methods that cannot be deployed. `group` names
    the group of methods that is drawn; it is empty if all are.
    """

    comparison: Comparison
    styles: Mapping[str, Style]
    speculating: Sequence[str]
    bounds: Sequence[str]
    group: str = ""

    @property
    def rows(self) -> Mapping[str, MethodRow]:
        """The metrics over all requests, by label."""
        return {
            label: row for label, row in self.comparison.overall.items() if label in self.styles
        }

    def by_group(self) -> "list[Scene]":
        """Return a scene for each group of methods with baseline and bounds, or this scene if there
        are no groups.
        """
        groups = {
            name: set(labels)
            for name, labels in self.comparison.by_group.items()
            if name != "bounds"
        }
        if not groups:
            return [self]
        common = {
            series.label
            for series in self.comparison.series
            if series.is_baseline or series.is_bound
        }
        scenes = []
        for name, labels in groups.items():
            if labels - common:
                shown = labels | common
                speculating = [label for label in self.speculating if label in shown]
                styles = styles_of(self.comparison, shown)
                scenes.append(Scene(self.comparison, styles, speculating, self.bounds, name))
        return scenes

    def curves(self, label: str) -> Curves:
        """Return what figures draw of a row beside its metrics."""
        return self.comparison.curves[label]


def styles_of(comparison: Comparison, labels: Collection[str] | None = None) -> dict[str, Style]:
    """Return the style of every row, or of those in `labels`: one colour for each method but
    baseline and bounds.
    """
    shown = [series for series in comparison.series if labels is None or series.label in labels]
    styles = {series.label: BASELINE_STYLE for series in shown if series.is_baseline}
    styles |= {series.label: BOUND_STYLE for series in shown if series.is_bound}
    styles |= method_styles(
        {series.label: series.spec for series in shown if series.label not in styles}
    )
    return {series.label: styles[series.label] for series in shown}


def short(label: str) -> str:
    """Return a label in lines that fit beside an axis, broken between words, options and the values
    of lists.
    """
    lines = [""]
    for word in re.findall(r"\S+\s*", label):
        # A word that fits stays whole; a longer one breaks behind a sign that divides its options
        # or values.
        for part in (
            re.split(r"(?<=[=+,/-])", word) if len(word.rstrip()) > LABEL_CHARACTERS else [word]
        ):
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > LABEL_CHARACTERS:
                lines.append("")
            lines[-1] += part
    return escaped("\n".join(fill(line, LABEL_CHARACTERS) for line in lines))


def height(labels: Sequence[str]) -> float:
    """Return the inches that a row for each label takes, with the axis."""
    lines = sum(1 + short(label).count("\n") * 0.5 for label in labels)
    return 0.8 + ROW_IN * lines


def name_rows(axes: "Axes", labels: Sequence[str]) -> None:
    """Write the labels beside the axis, from the top down."""
    axes.set_yticks(range(len(labels)), [short(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)


def legend(axes: "Axes") -> None:
    """Draw a legend below the axes, and a grid in them."""
    figure: Any = axes.figure
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)


def legend_in(labels: Collection[str]) -> float:
    """Return the inches that a legend of these labels takes."""
    return 0.2 * -(-len(labels) // 2) + 0.12 * sum(short(label).count("\n") for label in labels) / 2


def curve(
    axes: "Axes", style: Style, x: Any, y: Any, label: str, marked: bool = True, hover: str = ""
) -> None:
    """Draw one row's line."""
    marker = style.marker if marked else None
    lines = axes.plot(
        x,
        y,
        label=short(label),
        color=style.colour,
        linestyle=style.line,
        marker=marker,
        markersize=5,
    )
    assign(label, lines, hover)


def assign(label: str, artists: "Iterable[Artist]", hover: str = "") -> None:
    """Give marks ids with their method's name, by which a page can hide them, and a text for the
    pointer.
    """
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    for artist in artists:
        children = artist.axes.get_children() if artist.axes else []
        artist.set_gid(f"m-{name}--{children.index(artist)}")
        if hover:
            set_hover([artist], f"{label}\n{hover}")


class BarLook(TypedDict):
    """The look of a bar, by the names of matplotlib."""

    facecolor: tuple[float, float, float, float]
    hatch: str
    edgecolor: str
    linewidth: float


def filled(colour: str, hatch: str, alpha: float) -> BarLook:
    """Return the look of a bar whose hatch and opacity tell it from other bars of its colour."""
    from matplotlib.colors import to_rgba

    return {
        "facecolor": to_rgba(colour, alpha),
        "hatch": hatch,
        "edgecolor": colour,
        "linewidth": 0.6,
    }
