"""What the figures of a comparison share: what they are drawn from, and how rows look."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.rounds import Metrics, RequestGroup
from specbench_kit.reports.writing.drawing import plain
from specbench_kit.reports.writing.hover import say
from specbench_kit.reports.writing.palette import BASELINE_STYLE, BOUND_STYLE, Style, method_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.34
LABEL_CHARACTERS = 22


@dataclass(frozen=True, slots=True)
class Scene:
    """What every figure is drawn from: rows in their order, and the style of each."""

    comparison: Comparison
    styles: Mapping[str, Style]
    speculating: Sequence[str]
    bounds: Sequence[str]
    group: str = ""
    """The group of methods whose curves are drawn; all, where it is empty."""

    @property
    def rows(self) -> Mapping[str, Metrics]:
        """Metrics over all requests."""
        return {label: row for label, row in self.comparison.overall.items() if label in self.styles}

    def by_group(self) -> "list[Scene]":
        """One scene for each group of many methods, beside baseline and bounds; or this one where they are few."""
        groups = {name: set(labels) for name, labels in self.comparison.by_group.items() if name != "bounds"}
        if not groups:
            return [self]
        always = {one.label for one in self.comparison.series if one.is_baseline or one.is_bound}
        return [self._only(name, labels | always) for name, labels in groups.items() if labels - always]

    def _only(self, group: str, labels: set[str]) -> "Scene":
        styles = styles_of(self.comparison, labels)
        return Scene(self.comparison, styles, [one for one in self.speculating if one in labels], self.bounds, group)

    def requests(self, label: str) -> RequestGroup:
        """The requests of a row."""
        return self.comparison.groups[label]


def styles_of(comparison: Comparison, labels: Collection[str] | None = None) -> dict[str, Style]:
    """The style of every row, or of some: the baseline's, the bounds' and one colour for each other method."""
    series = [one for one in comparison.series if labels is None or one.label in labels]
    special = {one.label: BASELINE_STYLE for one in series if one.is_baseline}
    special |= {one.label: BOUND_STYLE for one in series if one.is_bound}
    others = method_styles({one.label: one.spec for one in series if one.label not in special})
    return {one.label: (special | others)[one.label] for one in series}


def short(label: str) -> str:
    """A label in lines that fit beside an axis."""
    return plain(fill(label, LABEL_CHARACTERS, break_on_hyphens=True))


def height(labels: Sequence[str]) -> float:
    """Inches that a row for each label takes, with the axis."""
    lines = sum(1 + short(label).count("\n") * 0.5 for label in labels)
    return 0.8 + ROW_IN * lines


def name_rows(axes: "Axes", labels: Sequence[str]) -> None:
    """Labels from the top down."""
    axes.set_yticks(range(len(labels)), [short(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)


def legend(axes: "Axes") -> None:
    """Below the axes, which get a grid."""
    figure: Any = axes.figure
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)


def legend_in(labels: Mapping[str, Any] | Sequence[str]) -> float:
    """Inches that a legend of these labels takes."""
    return 0.2 * -(-len(labels) // 2) + 0.12 * sum(short(label).count("\n") for label in labels) / 2


def curve(axes: "Axes", style: Style, x: Any, y: Any, label: str, marked: bool = True, said: str = "") -> None:
    """One row's line."""
    marker = style.marker if marked else None
    look: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "marker": marker, "markersize": 5}
    belong(label, axes.plot(x, y, label=short(label), **look), said)


def belong(label: str, artists: Iterable[Any], said: str = "") -> None:
    """Name marks after their method, so that a page can hide them; `said` is what they show under the pointer."""
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    for artist in artists:
        artist.set_gid(f"m-{name}--{artist.axes.get_children().index(artist)}")
        if said:
            say([artist], f"{label}\n{said}")


def filled(colour: str, hatch: str, alpha: float) -> dict[str, Any]:
    """A bar of this colour; a hatch and how full it is tell parts apart."""
    from matplotlib.colors import to_rgba

    return {"facecolor": to_rgba(colour, alpha), "hatch": hatch, "edgecolor": colour, "linewidth": 0.6}
