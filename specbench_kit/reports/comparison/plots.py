"""The figures of a comparison, drawn once for PNG, SVG and the HTML page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specbench_kit.metrics.comparison import Comparison
from specbench_kit.reports.comparison.curves import acceptance, gaps, lengths
from specbench_kit.reports.comparison.scene import (
    Scene,
    assign,
    filled,
    height,
    legend,
    legend_in,
    name_rows,
    short,
    styles_of,
)
from specbench_kit.reports.document import Estimate
from specbench_kit.reports.sections.columns import SPEEDUP, UNDECIDED
from specbench_kit.reports.stored import Row
from specbench_kit.reports.timeline.timeline import OTHER, STYLES
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.labels import name_points
from specbench_kit.reports.writing.palette import BLACK, COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CRUSHED = 8
"""Ratio of the largest to the least value from which a linear axis would leave the others no room."""
PHASE_STYLES = {**STYLES, "link": (COLOURS[5], "--"), "queue": ("white", "||")}


def pictures(comparison: Comparison) -> Iterator[Picture]:
    """Yield every figure that has something to show."""
    drafting = [label for label, row in comparison.overall.items() if row["submitted"] or row["accepted"]]
    bounds = [series.label for series in comparison.series if series.is_bound]
    scene = Scene(comparison, styles_of(comparison), drafting, bounds)
    few = not comparison.by_group
    for make in (speedups, pareto, acceptance, *([lengths] if few else []), wasted_drafting, phases, gaps):
        for part in scene.by_group() if make in OF_CURVES else [scene]:
            picture = make(part)
            if picture is not None and part.group:
                name, title = f"{picture.name}-{part.group}", f"{picture.title}: {part.group}"
                picture = replace(picture, name=name, title=title)
            if picture is not None:
                yield picture


def speedups(scene: Scene) -> Picture | None:
    """Return the figure of each method's speedup with its interval."""
    labels = [label for label, row in scene.rows.items() if row.get("speedup") is not None]
    if not labels:
        return None

    def draw(axes: "Axes") -> None:
        for level, label in enumerate(labels):
            row, style = scene.rows[label], scene.styles[label]
            bounds = row["intervals"].get("speedup")
            bar = axes.plot(bounds or [row["speedup"]] * 2, [level, level], color=style.colour, linewidth=2)
            point = axes.plot(
                [row["speedup"]],
                [level],
                linestyle="none",
                marker=style.marker,
                markersize=7,
                markerfacecolor="none" if row.get("verdict") in UNDECIDED else style.colour,
                markeredgecolor=style.colour,
            )
            assign(label, [*bar, *point], SPEEDUP.text(Estimate(row["speedup"], bounds)))
        axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
        name_rows(axes, labels)
        axes.set_xlabel("speedup over autoregressive decoding")

    note = "Points are ratios of summed times over the same prompts, bars simultaneous 95% intervals over prompts."
    if len(labels) > 1:
        note += f" Hollow: no difference from {scene.comparison.reference} is shown."
    title = "Speedup by method, with 95% intervals"
    return Picture("speedup", title, note, height(labels), draw)


def pareto(scene: Scene) -> Picture | None:
    """Return the figure of speed against cost if there are prices, else against the verifier's busy time."""
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
    axis_title = "price of a million tokens ($)" if priced else "server load (verifying ms per token)"

    def draw(axes: "Axes") -> None:
        for label, (x, y) in points.items():
            style = scene.styles[label]
            marks = axes.plot(
                x, y, linestyle="none", label=short(label), marker=style.marker, color=style.colour, markersize=8
            )
            assign(label, marks)
        front = _front([point for label, point in points.items() if label not in scene.bounds])
        axes.plot(*zip(*front, strict=True), color=GREY, linewidth=1, linestyle="--", zorder=0)
        axes.set(xlabel=axis_title, ylabel="committed tokens per second")
        for name, values in zip("xy", zip(*points.values(), strict=True), strict=True):
            if max(values) > CRUSHED * min(values):
                logarithmic(axes, name, (1, 2, 5))
        if name_points(axes, points):
            axes.grid(alpha=0.3)
        else:
            legend(axes)

    cost = "price" if priced else "server load"
    note = f"Up and to the left is better. Dashed: methods that no deployable one beats in both speed and {cost}."
    return Picture("pareto", f"Speed against {cost}", note, 2.9 + legend_in(points), draw)


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both cost and speed, cheapest first."""
    best, front = float("-inf"), []
    for cost, speed in sorted(points, key=lambda point: (point[0], -point[1])):
        if speed > best:
            best = speed
            front.append((cost, speed))
    return front


def wasted_drafting(scene: Scene) -> Picture | None:
    """Return the figure of each method's drafting time by what became of the tokens."""
    labels = [
        label
        for label in scene.speculating
        if scene.rows[label]["wdt_share"] is not None and scene.rows[label]["wdt_paper"] is not None
    ]
    if not labels:
        return None
    parts = {label: _drafting_ms(scene.rows[label]) for label in labels}
    looks = {"accepted": ("", 1.0), "sent and rejected": ("//", 0.45), "drafted and not sent": ("", 0.12)}

    def draw(axes: "Axes") -> None:
        for level, label in enumerate(labels):
            start = 0.0
            for width, (name, (hatch, alpha)) in zip(parts[label], looks.items(), strict=True):
                look = filled(scene.styles[label].colour, hatch, alpha)
                assign(label, axes.barh(level, width, 0.62, start, **look), f"{name}: {significant(width)} ms")
                start += width
        for name, (hatch, alpha) in looks.items():
            axes.barh([0], [0], label=name, **filled(GREY, hatch, alpha))
        name_rows(axes, labels)
        axes.set_xlabel("ms of drafting per committed token")
        legend(axes)

    note = "Wasted drafting time (WDT) is all but the first part; each token takes its round's mean drafting time."
    return Picture("wasted_drafting", "Where drafting time went", note, height(labels) + 0.5, draw)


def _drafting_ms(row: Row) -> tuple[float, float, float]:
    """Return the drafting time per committed token for tokens accepted, sent and rejected, and never sent."""
    scale = 1e3 / (row["tokens"] or 1)
    rejected = row["wdt_paper"] * scale
    unsent = max(0.0, (row["wdt"] - row["wdt_paper"]) * scale)
    return row["phase_seconds"]["draft"] * scale - rejected - unsent, rejected, unsent


def phases(scene: Scene) -> Picture | None:
    """Return the figure of each method's busy time per committed token by phase."""
    seconds = {label: row["phase_seconds"] for label, row in scene.rows.items() if row["tokens"]}
    names = [name for name in next(iter(seconds.values()), {}) if any(busy[name] for busy in seconds.values())]
    if not names:
        return None
    labels = list(seconds)

    def draw(axes: "Axes") -> None:
        starts = np.zeros(len(labels))
        for name in names:
            widths = np.array([1e3 * (seconds[label][name] or 0) / scene.rows[label]["tokens"] for label in labels])
            face, hatch = PHASE_STYLES.get(name, OTHER)
            bars = axes.barh(
                range(len(labels)),
                widths,
                0.62,
                starts,
                label=name,
                facecolor=face,
                hatch=hatch,
                edgecolor=BLACK,
                linewidth=0.4,
            )
            for label, bar in zip(labels, bars, strict=True):
                assign(label, [bar], f"{name}: {significant(bar.get_width())} ms")
            starts += widths
        name_rows(axes, labels)
        axes.set_xlabel("busy ms per committed token")
        legend(axes)

    note = "Busy time of each phase over all requests; phases of different devices may overlap."
    return Picture("phases", "Where the time goes", note, height(labels) + 0.3 + legend_in(names), draw)


OF_CURVES = (acceptance, lengths, gaps)
"""Figures in which many methods' curves would cover each other; the others have a row or a mark for each method."""
