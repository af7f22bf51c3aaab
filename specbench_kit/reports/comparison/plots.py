"""The figures of a comparison, drawn once for PNG, SVG and the HTML page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import asdict

from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_summary import MethodRow
from specbench_kit.metrics.vocabulary import PhaseValues
from specbench_kit.reports.comparison.scene import (
    Scene,
    assign,
    curve,
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
from specbench_kit.reports.timeline.timeline import OTHER, STYLES
from specbench_kit.reports.writing.drawing import Picture, logarithmic, name_points
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.palette import BLACK, COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def acceptance(scene: Scene) -> Picture | None:
    """Return the figure of the share of rounds that accepted each draft position."""
    rates = {label: scene.rows[label].acceptance_at for label in scene.speculating}
    rates = {
        label: by_position[: 1 + sum(map(bool, by_position))]
        for label, by_position in rates.items()
    }
    rates = {label: by_position for label, by_position in rates.items() if any(by_position)}
    if not rates:
        return None

    def draw(axes: "Axes") -> None:
        for label, by_position in rates.items():
            positions = range(1, len(by_position) + 1)
            percent = [100 * (rate or 0.0) for rate in by_position]
            curve(axes, scene.styles[label], positions, percent, label)
        axes.set(
            xlabel="position in the draft (in a tree: depth)", ylabel="rounds that accepted it (%)"
        )
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        legend(axes)

    note = (
        "Share of all rounds in which the target accepted the draft at least up to this position."
    )
    return Picture(
        "acceptance_by_position", "Acceptance by position", note, 2.8 + legend_in(rates), draw
    )


def lengths(scene: Scene) -> Picture | None:
    """Return the figure of the tokens accepted in rounds of each draft length."""
    curves = {label: scene.curves(label).accepted_by_length for label in scene.speculating}
    curves = {label: points for label, points in curves.items() if points.lengths}
    if not curves:
        return None
    longest = max(max(points.lengths) for points in curves.values())
    deepest = max(max(points.accepted) for points in curves.values())

    def draw(axes: "Axes") -> None:
        for label, points in curves.items():
            style = scene.styles[label]
            places = points.lengths, points.accepted
            line = axes.plot(
                *places, color=style.colour, linestyle=style.line, linewidth=1, alpha=0.6
            )
            sizes = 12 + 110 * np.array(points.rounds) / sum(points.rounds)
            marks = axes.scatter(
                *places, sizes, color=style.colour, marker=style.marker, label=short(label)
            )
            assign(label, [*line, marks])
        ends = [0, min(longest, deepest * 1.1)]
        axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=":", label="all accepted")
        axes.set(xlabel="tokens sent in a round", ylabel="mean tokens accepted")
        legend(axes)

    note = (
        "Marks grow with the share of rounds that have this length; lengths of fewer than 1% of rounds are left out. "
        "The length of a tree is the number of nodes that were sent."
    )
    return Picture(
        "draft_length",
        "Draft length against accepted length",
        note,
        2.9 + legend_in([*curves, ""]),
        draw,
    )


def gaps(scene: Scene) -> Picture | None:
    """Return the figure of the distribution of inter-token latencies."""
    curves = {label: np.array(scene.curves(label).itl_ms) for label in scene.rows}
    curves = {label: values_ms for label, values_ms in curves.items() if len(values_ms)}
    if not curves:
        return None

    def draw(axes: "Axes") -> None:
        for label, values_ms in curves.items():
            median_ms, p95_ms = np.quantile(values_ms, (0.5, 0.95))
            hover = f"half of the gaps: at most {significant(median_ms)} ms\n95%: at most {significant(p95_ms)} ms"
            percent = np.linspace(0, 100, len(values_ms))
            curve(axes, scene.styles[label], values_ms, percent, label, marked=False, hover=hover)
        logarithmic(axes, "x", (1, 2, 5))
        axes.set(xlabel="inter-token latency (ms)", ylabel="gaps at most this long (%)")
        legend(axes)

    note = "A round's tokens arrive together; the wait for them is divided evenly among them."
    return Picture("itl", "Inter-token latency (ITL)", note, 2.8 + legend_in(curves), draw)


MOST_ROWS = 16
"""Methods up to which a figure with a row for each can be read on one screen."""
CRUSHED = 8
"""Ratio of the largest to the least value from which a linear axis would leave the others no
room.
"""
PHASE_STYLES = {**STYLES, "link": (COLOURS[5], "--"), "queue": ("white", "||")}


def pictures(comparison: Comparison) -> Iterator[Picture]:
    """Yield every figure that has something to show."""
    drafting = [label for label, row in comparison.overall.items() if row.submitted or row.accepted]
    bounds = [series.label for series in comparison.series if series.is_bound]
    scene = Scene(comparison, styles_of(comparison), drafting, bounds)
    few = not comparison.by_group
    for make in (
        speedups,
        pareto,
        acceptance,
        *([lengths] if few else []),
        wasted_drafting,
        phases,
        gaps,
    ):
        for part in scene.by_group() if make in OF_CURVES else [scene]:
            picture = make(part)
            if picture is not None and part.group:
                name = f"{picture.name}-{part.group}"
                title = f"{picture.title}: {part.group}"
                picture = replace(picture, name=name, title=title)
            if picture is not None:
                yield picture


def speedups(scene: Scene) -> Picture | None:
    """Return the figure of each method's speedup with its interval, from fast to slow."""
    values = {
        label: row.typical_speedup
        for label, row in scene.rows.items()
        if row.typical_speedup is not None
    }
    if not values:
        return None
    labels = sorted(values, key=lambda label: -values[label])[:MOST_ROWS]

    def draw(axes: "Axes") -> None:
        for level, label in enumerate(labels):
            row = scene.rows[label]
            style = scene.styles[label]
            bounds = row.bounds("typical_speedup")
            bar = axes.plot(
                bounds or [values[label]] * 2, [level, level], color=style.colour, linewidth=2
            )
            point = axes.plot(
                [values[label]],
                [level],
                linestyle="none",
                marker=style.marker,
                markersize=7,
                markerfacecolor="none" if row.verdict in UNDECIDED else style.colour,
                markeredgecolor=style.colour,
            )
            assign(label, [*bar, *point], SPEEDUP.text(Estimate(values[label], bounds)))
        axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
        name_rows(axes, labels)
        axes.set_xlabel("speedup over autoregressive decoding on a typical prompt")

    note = "Points are speedups on a typical prompt, bars simultaneous 95% intervals over prompts."
    if len(labels) > 1:
        note += f" Hollow: no difference from {scene.comparison.reference} is shown."
    if len(labels) < len(values):
        note = f"The fastest {len(labels)} of {len(values)}; the tables have all. {note}"
    title = "Speedup by method, with 95% intervals"
    return Picture("speedup", title, note, height(labels), draw)


def pareto(scene: Scene) -> Picture | None:
    """Return the figure of speed against cost if there are prices, else against the verifier's busy
    time.
    """
    priced = {
        label: 1e6 / row.cost_efficiency for label, row in scene.rows.items() if row.cost_efficiency
    }
    loads = {
        label: 1e3 / row.server_tokens_per_busy_second
        for label, row in scene.rows.items()
        if row.server_tokens_per_busy_second
    }
    costs = priced or loads
    speeds = {label: scene.rows[label].throughput for label in costs}
    points = {label: (costs[label], speed) for label, speed in speeds.items() if speed}
    if len(points) < 2:
        return None
    axis_title = (
        "price of a million tokens ($)" if priced else "server load (verifying ms per token)"
    )

    def draw(axes: "Axes") -> None:
        for label, (x, y) in points.items():
            style = scene.styles[label]
            marks = axes.plot(
                x,
                y,
                linestyle="none",
                label=short(label),
                marker=style.marker,
                color=style.colour,
                markersize=8,
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
    best = float("-inf")
    front = []
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
        if scene.rows[label].wdt_share is not None and scene.rows[label].wdt_paper is not None
    ]
    if not labels:
        return None
    parts = {label: _drafting_ms(scene.rows[label]) for label in labels}
    looks = {
        "accepted": ("", 1.0),
        "sent and rejected": ("//", 0.45),
        "drafted and not sent": ("", 0.12),
    }

    def draw(axes: "Axes") -> None:
        for level, label in enumerate(labels):
            start = 0.0
            for width, (name, (hatch, alpha)) in zip(parts[label], looks.items(), strict=True):
                look = filled(scene.styles[label].colour, hatch, alpha)
                assign(
                    label,
                    axes.barh(level, width, 0.62, start, **look),
                    f"{name}: {significant(width)} ms",
                )
                start += width
        for name, (hatch, alpha) in looks.items():
            axes.barh([0], [0], label=name, **filled(GREY, hatch, alpha))
        name_rows(axes, labels)
        axes.set_xlabel("ms of drafting per committed token")
        legend(axes)

    note = "Wasted drafting time (WDT) is all but the first part; each token takes its round's mean drafting time."
    return Picture("wasted_drafting", "Where drafting time went", note, height(labels) + 0.5, draw)


def _drafting_ms(row: MethodRow) -> tuple[float, float, float]:
    """Return the drafting time per committed token for tokens accepted, sent and rejected, and
    never sent.
    """
    scale = 1e3 / (row.tokens or 1)
    sent_s = row.wdt_paper or 0.0
    rejected = sent_s * scale
    unsent = max(0.0, ((row.wdt or 0.0) - sent_s) * scale)
    return (row.phase_seconds.draft or 0.0) * scale - rejected - unsent, rejected, unsent


def phases(scene: Scene) -> Picture | None:
    """Return the figure of each method's busy time per committed token by phase."""
    seconds = {label: asdict(row.phase_seconds) for label, row in scene.rows.items() if row.tokens}
    names = [
        name
        for name in PhaseValues.__struct_fields__
        if any(map(itemgetter(name), seconds.values()))
    ]
    if not names:
        return None
    labels = list(seconds)

    def draw(axes: "Axes") -> None:
        starts = np.zeros(len(labels))
        for name in names:
            widths = np.array(
                [
                    1e3 * (seconds[label][name] or 0) / (scene.rows[label].tokens or 1)
                    for label in labels
                ]
            )
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
    return Picture(
        "phases", "Where the time goes", note, height(labels) + 0.3 + legend_in(names), draw
    )


OF_CURVES = (acceptance, lengths, gaps)
"""Figures in which many methods' curves would cover each other; the others have a row or a mark for
each method.
"""
