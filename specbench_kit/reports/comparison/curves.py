"""The figures of a comparison in which every method is a curve."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specbench_kit.metrics.latency import inter_token_gaps
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.reports.comparison.scene import Scene, assign, curve, legend, legend_in, short
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.palette import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_SHARE = 0.01
"""Share of a method's rounds from which a draft length is shown."""
QUANTILES = 201

Numbers = npt.NDArray[np.float64]


def acceptance(scene: Scene) -> Picture | None:
    """Return the figure of the share of rounds that accepted each draft position."""
    rates = {label: scene.rows[label]["acceptance_at"] for label in scene.speculating}
    rates = {label: by_position[: 1 + sum(map(bool, by_position))] for label, by_position in rates.items()}
    rates = {label: by_position for label, by_position in rates.items() if any(by_position)}
    if not rates:
        return None

    def draw(axes: "Axes") -> None:
        for label, by_position in rates.items():
            positions, percent = range(1, len(by_position) + 1), [100 * rate for rate in by_position]
            curve(axes, scene.styles[label], positions, percent, label)
        axes.set(xlabel="position in the draft (in a tree: depth)", ylabel="rounds that accepted it (%)")
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        legend(axes)

    note = "Share of all rounds in which the target accepted the draft at least up to this position."
    return Picture("acceptance_by_position", "Acceptance by position", note, 2.8 + legend_in(rates), draw)


def lengths(scene: Scene) -> Picture | None:
    """Return the figure of the tokens accepted in rounds of each draft length."""
    curves = {label: _accepted_by_length(scene.requests(label)) for label in scene.speculating}
    curves = {label: columns for label, columns in curves.items() if len(columns[0])}
    if not curves:
        return None
    longest = max(float(lengths.max()) for lengths, *_ in curves.values())
    deepest = max(float(accepted.max()) for _, accepted, _ in curves.values())

    def draw(axes: "Axes") -> None:
        for label, (lengths, accepted, rounds) in curves.items():
            style = scene.styles[label]
            line = axes.plot(lengths, accepted, color=style.colour, linestyle=style.line, linewidth=1, alpha=0.6)
            sizes = 12 + 110 * rounds / rounds.sum()
            marks = axes.scatter(lengths, accepted, sizes, color=style.colour, marker=style.marker, label=short(label))
            assign(label, [*line, marks])
        ends = [0, min(longest, deepest * 1.1)]
        axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=":", label="all accepted")
        axes.set(xlabel="tokens sent in a round", ylabel="mean tokens accepted")
        legend(axes)

    note = (
        "Marks grow with the share of rounds that have this length; lengths of fewer than 1% of rounds are left out. "
        "The length of a tree is the number of nodes that were sent."
    )
    return Picture("draft_length", "Draft length against accepted length", note, 2.9 + legend_in([*curves, ""]), draw)


def _accepted_by_length(group: RequestGroup) -> tuple[Numbers, Numbers, Numbers]:
    """Return the lengths sent, the mean accepted tokens and the number of rounds of each."""
    rounds = group.rounds
    # A pipeline's rounds are steps, which have no length.
    chosen = (rounds["steps"] == 0) & np.isfinite(rounds["submitted"]) & (rounds["submitted"] > 0)
    sent = rounds["submitted"][chosen].astype(np.int64)
    number = np.bincount(sent)
    lengths = np.flatnonzero(number >= max(1.0, LEAST_SHARE * number.sum()))
    accepted = np.bincount(sent, weights=rounds["accepted"][chosen])[lengths] / number[lengths]
    return lengths.astype(np.float64), accepted, number[lengths].astype(np.float64)


def gaps(scene: Scene) -> Picture | None:
    """Return the figure of the distribution of inter-token latencies."""
    waits = {label: inter_token_gaps(scene.requests(label).rounds) for label in scene.rows}
    shares = np.linspace(0, 1, QUANTILES)
    curves = {
        label: np.quantile(gaps_s[gaps_s > 0], shares) * 1e3 for label, gaps_s in waits.items() if (gaps_s > 0).any()
    }
    if not curves:
        return None

    def draw(axes: "Axes") -> None:
        for label, values_ms in curves.items():
            median_ms, p95_ms = np.quantile(values_ms, (0.5, 0.95))
            hover = f"half of the gaps: at most {significant(median_ms)} ms\n95%: at most {significant(p95_ms)} ms"
            curve(axes, scene.styles[label], values_ms, 100 * shares, label, marked=False, hover=hover)
        logarithmic(axes, "x", (1, 2, 5))
        axes.set(xlabel="inter-token latency (ms)", ylabel="gaps at most this long (%)")
        legend(axes)

    note = "A round's tokens arrive together; the wait for them is divided evenly among them."
    return Picture("itl", "Inter-token latency (ITL)", note, 2.8 + legend_in(curves), draw)
