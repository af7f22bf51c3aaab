"""Plots of a training run, as PNG files that need no colour to be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench_kit.predictors import scoring
from specbench_kit.reports.predictor import wording
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import COLOURS, GREY, LINES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """Test tokens: accepted or not [n], a judge's scores [n], and its threshold."""

    labels: scoring.Labels
    scores: scoring.Scores
    threshold: float


def write_plots(folder: Path, summary: Fields, judged: Mapping[str, Judged], where: str) -> None:
    """All plots; `judged` holds the judges by name, `where` says what was measured on what."""
    folder.mkdir(parents=True, exist_ok=True)
    tested = f"{where}, test prompts"
    with plot(folder / "speed.png", (8, 0.42 * len(summary["contenders"]) + 1.6)) as axes:
        _speed(axes, summary, f"Modelled speed against the best fixed length\n({tested}; 95% intervals over prompts)")
    with plot(folder / "roc.png", (6.4, 6)) as axes:
        _roc(axes, judged, f"Telling accepted from rejected tokens\n({tested}; marks: chosen thresholds)")
    with plot(folder / "precision_recall.png", (6.4, 6)) as axes:
        _precision_recall(
            axes, judged, f"Precision and recall on accepted tokens\n({tested}; marks: chosen thresholds)"
        )
    with plot(folder / "calibration.png", (6.4, 6)) as axes:
        _calibration(axes, summary, f"Predicted against observed acceptance\n({tested})")
    with plot(folder / "correlations.png", (6.4, 5.6)) as axes:
        _correlations(axes, summary["correlations"], f"Correlations of draft statistics\n({where}, training prompts)")
    _acceptance(folder / "acceptance_by_feature.png", summary["acceptance_by_feature"], where)


def _speed(axes: "Axes", summary: Fields, title: str) -> None:
    decoding = {one["name"]: summary["decoding"][one["name"]] for one in summary["contenders"]}
    ordered = sorted(decoding.items(), key=lambda item: item[1]["against_best_fixed"]["value"])
    kinds = list(dict.fromkeys(one["kind"] for one in summary["contenders"]))
    for row, (_, metrics) in enumerate(ordered):
        ratio, place = metrics["against_best_fixed"], kinds.index(metrics["kind"])
        low, high = ratio["interval"] or (ratio["value"], ratio["value"])
        axes.plot([low, high], [row, row], color=COLOURS[place], linewidth=2)
        axes.plot(ratio["value"], row, MARKERS[place], color=COLOURS[place])
    axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
    axes.set_yticks(
        range(len(ordered)), [wording.label(name, found["kind"]).replace("`", "") for name, found in ordered]
    )
    axes.set(xlabel="tokens per second, relative to the best fixed length", title=title)
    axes.grid(axis="x", alpha=0.3)


def _roc(axes: "Axes", judged: Mapping[str, Judged], title: str) -> None:
    for place, (name, one) in enumerate(judged.items()):
        curve, counts = scoring.roc(one.labels, one.scores), scoring.confusion(one.labels, one.scores, one.threshold)
        label = f"{name} (AUC {scoring.auc(one.labels, one.scores):.3f})"
        _line(axes, place, curve.false_positive_rate, curve.recall, label)
        _mark(axes, place, counts.false_positive_rate, counts.recall)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    _unit_square(axes, "false positive rate (rejected tokens let pass)", "recall on accepted tokens", title)


def _precision_recall(axes: "Axes", judged: Mapping[str, Judged], title: str) -> None:
    for place, (name, one) in enumerate(judged.items()):
        curve, counts = (
            scoring.precision_recall(one.labels, one.scores),
            scoring.confusion(one.labels, one.scores, one.threshold),
        )
        _line(axes, place, curve.recall, curve.precision, name)
        positives = counts.true_positives + counts.false_positives
        _mark(axes, place, counts.recall, counts.true_positives / positives if positives else 1.0)
    share = float(next(iter(judged.values())).labels.mean())
    axes.axhline(share, color=GREY, linewidth=1, linestyle=":", label="share of accepted tokens")
    _unit_square(axes, "recall on accepted tokens", "precision", title)
    # Below the share of accepted tokens there is next to nothing to see.
    axes.set_ylim(max(-0.02, share - 0.15), 1.02)


def _calibration(axes: "Axes", summary: Fields, title: str) -> None:
    for place, (name, bins) in enumerate(summary["calibration"].items()):
        error = summary["classification"][name]["expected_calibration_error"]
        _line(axes, place, bins["mean_score"], bins["accepted_share"], f"{name} (ECE {error:.3f})", MARKERS[place % 7])
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    _unit_square(axes, "mean predicted probability of acceptance", "share accepted", title)


def _correlations(axes: "Axes", found: Fields, title: str) -> None:
    matrix = np.array([[np.nan if cell is None else cell for cell in row] for row in found["matrix"]])
    image = axes.imshow(matrix, cmap="PuOr_r", vmin=-1, vmax=1)
    for (row, column), value in np.ndenumerate(matrix):
        dark = abs(value) > 0.6
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(matrix)), found["names"], rotation=30, ha="right")
    axes.set_yticks(range(len(matrix)), found["names"])
    axes.set_title(title)
    axes.figure.colorbar(image, ax=axes, label="Pearson correlation", shrink=0.8)


def _acceptance(path: Path, curves: Mapping[str, Sequence[Fields]], where: str) -> None:
    rows = -(-len(curves) // 2)
    with plot(path, (9, 3.1 * rows + 0.6), rows, 2) as grid:
        spare = list(grid.flat)
        for name, points in curves.items():
            axes = spare.pop(0)
            share, count = ([point[key] for point in points] for key in ("accepted", "count"))
            error = [1.96 * (p * (1 - p) / n) ** 0.5 for p, n in zip(share, count, strict=True)]
            values = [point["value"] for point in points]
            axes.errorbar(values, share, error, color=COLOURS[0], marker="o", markersize=4, capsize=2)
            axes.set(xlabel=name.replace("_", " "), ylabel="share accepted", ylim=(-0.02, 1.02))
            axes.grid(alpha=0.3)
        for axes in spare:
            axes.set_axis_off()
        grid.flat[0].figure.suptitle(
            f"Share of drafted tokens that the target accepts, by draft statistic\n"
            f"({where}, training prompts; bins of about equal count)"
        )


def _line(axes: "Axes", place: int, x: Any, y: Any, label: str, marker: str | None = None) -> None:
    style = LINES[place % len(LINES)]
    axes.plot(x, y, color=COLOURS[place % len(COLOURS)], linestyle=style, label=label, marker=marker, markersize=5)


def _mark(axes: "Axes", place: int, x: float, y: float) -> None:
    """Hollow and of different size, so that marks on one spot can be told apart."""
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.plot(x, y, marker, color=colour, markersize=8 + 2 * place, fillstyle="none", markeredgewidth=2)


def _unit_square(axes: "Axes", x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y, title=title, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)
