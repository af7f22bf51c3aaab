"""The figures of a comparison, drawn once for PNG, SVG and the HTML page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.reports.columns import SPEEDUP, UNDECIDED
from specbench_kit.reports.comparison.curves import acceptance, gaps, lengths
from specbench_kit.reports.comparison.scene import (
    Scene,
    belong,
    filled,
    height,
    legend,
    legend_in,
    name_rows,
    short,
    styles_of,
)
from specbench_kit.reports.document import Estimate
from specbench_kit.reports.timeline.timeline import OTHER, STYLES
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.labels import name_points
from specbench_kit.reports.writing.palette import BLACK, COLOURS, GREY, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CRUSHED = 8
"""Times the least value from which the largest would leave the others no room on a linear axis."""
PHASE_STYLES = {**STYLES, "link": (COLOURS[5], "--"), "queue": ("white", "||")}


def pictures(comparison: Comparison) -> Iterator[Picture]:
    """Every figure that has something to show."""
    drafting = [label for label, row in comparison.overall.items() if row["submitted"] or row["accepted"]]
    bounds = [one.label for one in comparison.series if one.is_bound]
    scene = Scene(comparison, styles_of(comparison), drafting, bounds)
    few = not comparison.by_group
    for make in (_speedup, _pareto, acceptance, *([lengths] if few else []), _wasted, _phases, gaps):
        for part in scene.by_group() if make in OF_CURVES else [scene]:
            picture = make(part)
            if picture is not None:
                yield _of_group(picture, part.group)


def _of_group(picture: Picture, group: str) -> Picture:
    if not group:
        return picture
    return replace(picture, name=f"{picture.name}-{group}", title=f"{picture.title}: {group}")


def _speedup(scene: Scene) -> Picture | None:
    labels = [label for label, row in scene.rows.items() if row.get("speedup") is not None]
    if not labels:
        return None

    def draw(axes: "Axes") -> None:
        for place, label in enumerate(labels):
            row = scene.rows[label]
            speedup = SPEEDUP.text(Estimate(row["speedup"], row["intervals"].get("speedup")))
            belong(label, _interval(axes, place, row, scene.styles[label]), speedup)
        axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
        name_rows(axes, labels)
        axes.set_xlabel("speedup over autoregressive decoding")

    note = (
        "Points are ratios of summed times over the same prompts, bars 95% intervals over prompts that hold together."
    )
    if len(labels) > 1:
        note += f" Hollow: no difference from {scene.comparison.reference} is shown."
    title = "Speedup by method, with 95% intervals"
    return Picture("speedup", title, note, height(labels), draw)


def _interval(axes: "Axes", place: int, row: Metrics, style: Style) -> list[Any]:
    bounds = row["intervals"].get("speedup") or [row["speedup"]] * 2
    bar = axes.plot(bounds, [place, place], color=style.colour, linewidth=2)
    face = "none" if row.get("verdict") in UNDECIDED else style.colour
    point = axes.plot(
        [row["speedup"]],
        [place],
        linestyle="none",
        marker=style.marker,
        markersize=7,
        markerfacecolor=face,
        markeredgecolor=style.colour,
    )
    return [*bar, *point]


def _pareto(scene: Scene) -> Picture | None:
    """Speed against cost where there are prices, else against the verifier's busy time."""
    priced = {label: 1e6 / row["cost_efficiency"] for label, row in scene.rows.items() if row.get("cost_efficiency")}
    loads = {
        label: 1e3 / row["server_tokens_per_busy_second"]
        for label, row in scene.rows.items()
        if row.get("server_tokens_per_busy_second")
    }
    costs = priced or loads
    speeds = {label: scene.rows[label].get("throughput") for label in costs}
    points = {label: (costs[label], speed) for label, speed in speeds.items() if speed}
    if len(points) < 2:
        return None
    price = "price of a million tokens ($)"
    load = "server load (verifying ms per token)"

    def draw(axes: "Axes") -> None:
        for label, point in points.items():
            style = scene.styles[label]
            look: dict[str, Any] = {"marker": style.marker, "color": style.colour, "markersize": 8}
            belong(label, axes.plot(*point, linestyle="none", label=short(label), **look))
        front = _front([point for label, point in points.items() if label not in scene.bounds])
        axes.plot(*zip(*front, strict=True), color=GREY, linewidth=1, linestyle="--", zorder=0)
        axes.set(xlabel=price if priced else load, ylabel="committed tokens per second")
        for name, values in zip("xy", zip(*points.values(), strict=True), strict=True):
            if max(values) > CRUSHED * min(values):
                logarithmic(axes, name, (1, 2, 5))
        if name_points(axes, points):
            axes.grid(alpha=0.3)
        else:
            legend(axes)

    what = "price" if priced else "server load"
    note = f"Up and to the left is better. Dashed: those that no other beats in both speed and {what}, bounds aside."
    return Picture("pareto", f"Speed against {what}", note, 2.9 + legend_in(points), draw)


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other beats in both, cheapest first."""
    best, front = float("-inf"), []
    for cost, speed in sorted(points, key=lambda point: (point[0], -point[1])):
        if speed > best:
            best = speed
            front.append((cost, speed))
    return front


def _wasted(scene: Scene) -> Picture | None:
    labels = [label for label in scene.speculating if _knows_waste(scene.rows[label])]
    if not labels:
        return None
    parts = {label: _drafting_ms(scene.rows[label]) for label in labels}
    looks = {"accepted": ("", 1.0), "sent and rejected": ("//", 0.45), "drafted and not sent": ("", 0.12)}

    def draw(axes: "Axes") -> None:
        for place, label in enumerate(labels):
            left = 0.0
            for width, (name, (hatch, alpha)) in zip(parts[label], looks.items(), strict=True):
                look = filled(scene.styles[label].colour, hatch, alpha)
                belong(label, axes.barh(place, width, 0.62, left, **look), f"{name}: {significant(width)} ms")
                left += width
        for name, (hatch, alpha) in looks.items():
            axes.barh([0], [0], label=name, **filled(GREY, hatch, alpha))
        name_rows(axes, labels)
        axes.set_xlabel("ms of drafting per committed token")
        legend(axes)

    note = (
        "Wasted drafting time (WDT) is all but the first part; each token counts with its round's mean drafting time."
    )
    return Picture("wasted_drafting", "What drafting time went into", note, height(labels) + 0.5, draw)


def _knows_waste(row: Metrics) -> bool:
    return row["wdt_share"] is not None and row["wdt_paper"] is not None


def _drafting_ms(row: Metrics) -> tuple[float, float, float]:
    scale = 1e3 / (row["tokens"] or 1)
    rejected = row["wdt_paper"] * scale
    unsent = max(0.0, (row["wdt"] - row["wdt_paper"]) * scale)
    return row["phase_seconds"]["draft"] * scale - rejected - unsent, rejected, unsent


def _phases(scene: Scene) -> Picture | None:
    seconds = {label: row["phase_seconds"] for label, row in scene.rows.items() if row["tokens"]}
    names = [name for name in next(iter(seconds.values()), {}) if any(found[name] for found in seconds.values())]
    if not names:
        return None
    labels = list(seconds)

    def draw(axes: "Axes") -> None:
        left = np.zeros(len(labels))
        for name in names:
            widths = np.array([1e3 * (seconds[one][name] or 0) / scene.rows[one]["tokens"] for one in labels])
            face, hatch = PHASE_STYLES.get(name, OTHER)
            look: dict[str, Any] = {"facecolor": face, "hatch": hatch, "edgecolor": BLACK, "linewidth": 0.4}
            for label, bar in zip(
                labels, axes.barh(range(len(labels)), widths, 0.62, left, label=name, **look), strict=True
            ):
                belong(label, [bar], f"{name}: {significant(bar.get_width())} ms")
            left += widths
        name_rows(axes, labels)
        axes.set_xlabel("busy ms per committed token")
        legend(axes)

    note = "Busy time of each phase over all requests; phases of different devices may overlap."
    return Picture("phases", "Where the time goes", note, height(labels) + 0.3 + legend_in(names), draw)


OF_CURVES = (acceptance, lengths, gaps)
"""Figures in which many methods would lie upon each other; the others have a row or a mark for each."""
