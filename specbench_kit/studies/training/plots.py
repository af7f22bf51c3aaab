"""Plots of a training run, as PNG and SVG files that can be read without colour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specbench_kit.predictors import scoring
from specbench_kit.reports.document import plain
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import COLOURS, GREY, LINES, MARKERS
from specbench_kit.studies.training import wording
from specbench_kit.studies.training.wording import CorrelationMatrix, CurvePoint, TrainingSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike


ON_DARK_CELL = "#fefefe"
ON_LIGHT_CELL = "#010101"
"""Colours of numbers in cells, other than plain white and black, which follow a page's own
background.
"""


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Test tokens: accepted or not [n], the scores of one contender [n], and its threshold."""

    labels: scoring.Labels
    scores: scoring.Scores
    threshold: float


def write_plots(
    folder: Path, summary: TrainingSummary, scored: Mapping[str, ScoredTokens], where: str
) -> None:
    """Write all plots; `scored` holds test tokens by contender, `where` names the data in the
    titles.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tested = f"{where}, test prompts"
    marks = "marks: chosen thresholds"
    with plot(folder / "speed.png", (6.4, 0.42 * len(summary.contenders) + 1.6)) as axes:
        _speed(axes, summary, f"Modelled speed\n({tested})")
    with plot(folder / "roc.png", (6.4, 6)) as axes:
        _roc(axes, scored, f"ROC: telling accepted from rejected tokens\n({tested}; {marks})")
    with plot(folder / "precision_recall.png", (6.4, 6)) as axes:
        _precision_recall(
            axes, scored, f"Precision and recall on accepted tokens\n({tested}; {marks})"
        )
    with plot(folder / "calibration.png", (6.4, 6)) as axes:
        _calibration(axes, summary, f"Predicted against observed acceptance\n({tested})")
    with plot(folder / "correlations.png", (6.4, 5.6)) as axes:
        _correlations(
            axes,
            summary.correlations,
            f"Correlations of draft statistics\n({where}, training prompts)",
        )
    _acceptance(folder / "acceptance_by_feature.png", summary.acceptance_by_feature, where)


def _speed(axes: "Axes", summary: TrainingSummary, title: str) -> None:
    decoding = {
        contender.name: summary.decoding[contender.name] for contender in summary.contenders
    }
    ordered = sorted(decoding.items(), key=lambda item: item[1].against_best_fixed.value or 0.0)
    kinds = list(dict.fromkeys(contender.kind for contender in summary.contenders))
    for row, (_, metrics) in enumerate(ordered):
        speed = metrics.against_best_fixed.value or 0.0
        kind = kinds.index(metrics.kind)
        low, high = metrics.against_best_fixed.interval or (speed, speed)
        axes.plot([low, high], [row, row], color=COLOURS[kind], linewidth=2)
        axes.plot(speed, row, MARKERS[kind], color=COLOURS[kind])
    axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
    labels = [plain(wording.label(name, metrics.kind)) for name, metrics in ordered]
    axes.set_yticks(range(len(ordered)), labels)
    axes.set(xlabel="speed / best fixed length", title=title)
    axes.grid(axis="x", alpha=0.3)


def _roc(axes: "Axes", scored: Mapping[str, ScoredTokens], title: str) -> None:
    for index, (name, tokens) in enumerate(scored.items()):
        curve = scoring.roc(tokens.labels, tokens.scores)
        counts = scoring.confusion(tokens.labels, tokens.scores, tokens.threshold)
        label = f"{name} (AUC {scoring.auc(tokens.labels, tokens.scores):.3f})"
        _line(axes, index, curve.false_positive_rate, curve.recall, label)
        _mark(axes, index, counts.false_positive_rate, counts.recall)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    _unit_square(
        axes, "false positive rate (rejected tokens that pass)", "recall on accepted tokens", title
    )


def _precision_recall(axes: "Axes", scored: Mapping[str, ScoredTokens], title: str) -> None:
    for index, (name, tokens) in enumerate(scored.items()):
        curve = scoring.precision_recall(tokens.labels, tokens.scores)
        counts = scoring.confusion(tokens.labels, tokens.scores, tokens.threshold)
        _line(axes, index, curve.recall, curve.precision, name)
        positives = counts.true_positives + counts.false_positives
        _mark(axes, index, counts.recall, counts.true_positives / positives if positives else 1.0)
    share = float(next(iter(scored.values())).labels.mean())
    axes.axhline(share, color=GREY, linewidth=1, linestyle=":", label="share of accepted tokens")
    _unit_square(axes, "recall on accepted tokens", "precision", title)
    # A rule that lets everything pass has this precision, so that almost all curves lie above it.
    axes.set_ylim(max(-0.02, share - 0.15), 1.02)


def _calibration(axes: "Axes", summary: TrainingSummary, title: str) -> None:
    for index, (name, bins) in enumerate(summary.calibration.items()):
        error = summary.classification[name].expected_calibration_error
        _line(
            axes,
            index,
            bins.mean_score,
            bins.accepted_share,
            f"{name} (ECE {error:.3f})",
            MARKERS[index % 7],
        )
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    _unit_square(axes, "mean predicted probability of acceptance", "share accepted", title)


def _correlations(axes: "Axes", correlations: CorrelationMatrix, title: str) -> None:
    matrix = np.array(correlations.matrix, np.float64)
    # Cells are shapes: a picture of pixels inside the drawing is what an HTML page's policy keeps
    # from loading.
    cells = axes.pcolormesh(matrix, cmap="PuOr_r", vmin=-1, vmax=1)
    for (row, column), value in np.ndenumerate(matrix):
        colour = ON_DARK_CELL if abs(value) > 0.6 else ON_LIGHT_CELL
        axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center", color=colour)
    centres = np.arange(len(matrix)) + 0.5
    axes.set_xticks(centres, correlations.names, rotation=30, ha="right")
    axes.set_yticks(centres, correlations.names)
    axes.invert_yaxis()
    axes.set_title(title)
    bar = axes.figure.colorbar(cells, ax=axes, label="Pearson correlation", shrink=0.8)
    if bar.solids is not None:
        bar.solids.set_rasterized(False)  # a page loads no pictures of pixels


def _acceptance(path: Path, curves: Mapping[str, Sequence[CurvePoint]], where: str) -> None:
    rows = -(-len(curves) // 2)
    with plot(path, (9, 3.1 * rows + 0.6), rows, 2) as grid:
        panels = list(grid.flat)
        for name, points in curves.items():
            axes = panels.pop(0)
            shares = [point.accepted for point in points]
            error = [
                1.96 * (point.accepted * (1 - point.accepted) / point.count) ** 0.5
                for point in points
            ]
            values = [point.value for point in points]
            axes.errorbar(
                values, shares, error, color=COLOURS[0], marker="o", markersize=4, capsize=2
            )
            axes.set(xlabel=name.replace("_", " "), ylabel="share accepted", ylim=(-0.02, 1.02))
            axes.grid(alpha=0.3)
        for axes in panels:
            axes.set_axis_off()
        grid.flat[0].figure.suptitle(
            f"Share of drafted tokens that the target accepts, by draft statistic\n"
            f"({where}, training prompts; bins of about equal count)"
        )


def _line(
    axes: "Axes", index: int, x: "ArrayLike", y: "ArrayLike", label: str, marker: str | None = None
) -> None:
    colour = COLOURS[index % len(COLOURS)]
    style = LINES[index % len(LINES)]
    axes.plot(x, y, color=colour, linestyle=style, label=label, marker=marker, markersize=5)


def _mark(axes: "Axes", index: int, x: float, y: float) -> None:
    """Draw a hollow mark whose size grows with the index, so that marks at the same point stay
    visible.
    """
    colour = COLOURS[index % len(COLOURS)]
    marker = MARKERS[index % len(MARKERS)]
    axes.plot(
        x, y, marker, color=colour, markersize=8 + 2 * index, fillstyle="none", markeredgewidth=2
    )


def _unit_square(axes: "Axes", x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y, title=title, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)
