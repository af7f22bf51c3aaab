"""The figures of a comparison in which every method is a curve."""

from typing import TYPE_CHECKING, Any

import numpy as np

from specbench_kit.metrics.latency import inter_token_gaps
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.reports.comparison.scene import Scene, belong, curve, legend, legend_in, short
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.reports.writing.palette import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_SHARE = 0.01
"""Of a method's rounds that have a length which is shown."""
QUANTILES = 201


def acceptance(scene: Scene) -> Picture | None:
    """How far into a draft the target still agrees."""
    rates = {label: scene.rows[label]["acceptance_at"] for label in scene.speculating}
    rates = {label: found[: 1 + sum(1 for rate in found if rate)] for label, found in rates.items() if any(found)}
    if not rates:
        return None

    def draw(axes: "Axes") -> None:
        for label, found in rates.items():
            curve(axes, scene.styles[label], range(1, len(found) + 1), [100 * rate for rate in found], label)
        axes.set(xlabel="position in the draft (in a tree: depth)", ylabel="rounds that accepted it (%)")
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        legend(axes)

    note = "Share of all rounds in which the target accepted the draft up to this position at least."
    return Picture("acceptance_by_position", "Acceptance by position", note, 2.8 + legend_in(rates), draw)


def lengths(scene: Scene) -> Picture | None:
    """What longer drafts bring."""
    curves = {label: _accepted_by_length(scene.requests(label)) for label in scene.speculating}
    curves = {label: curve for label, curve in curves.items() if len(curve[0])}
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
            belong(label, [*line, marks])
        ends = [0, min(longest, deepest * 1.1)]
        axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=":", label="all accepted")
        axes.set(xlabel="tokens sent in a round", ylabel="mean tokens accepted")
        legend(axes)

    note = (
        "Marks grow with the share of rounds of that length; lengths of less than 1% of rounds are left out. "
        "Of a tree, all nodes that were sent count."
    )
    return Picture("draft_length", "Draft length against accepted length", note, 2.9 + legend_in([*curves, ""]), draw)


def _accepted_by_length(group: RequestGroup) -> tuple[Any, Any, Any]:
    """Lengths sent, mean accepted and number of rounds of each; a pipeline's rounds have no length."""
    rounds = group.rounds
    chosen = (rounds["steps"] == 0) & np.isfinite(rounds["submitted"]) & (rounds["submitted"] > 0)
    sent = rounds["submitted"][chosen].astype(np.int64)
    number = np.bincount(sent)
    lengths = np.flatnonzero(number >= max(1.0, LEAST_SHARE * number.sum()))
    accepted = np.bincount(sent, weights=rounds["accepted"][chosen])[lengths] / number[lengths]
    return lengths, accepted, number[lengths]


def gaps(scene: Scene) -> Picture | None:
    """How long tokens keep a reader waiting."""
    waits = {label: inter_token_gaps(scene.requests(label).rounds) for label in scene.rows}
    waits = {label: found[found > 0] for label, found in waits.items()}
    shares = np.linspace(0, 1, QUANTILES)
    curves = {label: np.quantile(found, shares) * 1e3 for label, found in waits.items() if len(found)}
    if not curves:
        return None

    def draw(axes: "Axes") -> None:
        for label, values in curves.items():
            half, most = np.quantile(values, (0.5, 0.95))
            said = f"half of the gaps: at most {significant(half)} ms\n95%: at most {significant(most)} ms"
            curve(axes, scene.styles[label], values, 100 * shares, label, marked=False, said=said)
        logarithmic(axes, "x", (1, 2, 5))
        axes.set(xlabel="inter-token latency (ms)", ylabel="gaps at most this long (%)")
        legend(axes)

    note = "A round's tokens arrive together; each counts with its share of the wait for them."
    return Picture("itl", "Inter-token latency (ITL)", note, 2.8 + legend_in(curves), draw)
