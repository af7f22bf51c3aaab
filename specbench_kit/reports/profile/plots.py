"""Plots of a latency profile, as PNG files that need no colour to be read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.fit import Fit, Observation
from specbench_kit.reports.writing.drawing import logarithmic, plot
from specbench_kit.reports.writing.palette import COLOURS, GREY, HATCHES, LINES, MARKERS
from specbench_kit.reports.writing.profiles import SYMBOLS, UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("train", "test")


def write_plots(folder: Path, profile: Profile, fit: Fit) -> None:
    """Every plot of one profile, its role first in the file names."""
    folder.mkdir(parents=True, exist_ok=True)
    where = f"{profile.model} as {profile.role} on {profile.device}, {profile.dtype}, {profile.source}"
    with plot(folder / f"{profile.role}_shares.png", (8, 0.6 * len(fit.regimes) + 1.8)) as axes:
        _shares(axes, fit, f"What the predicted time is made of\n({where})")
    if profile.source == "roofline":
        return
    with plot(folder / f"{profile.role}_predicted.png", (6.4, 6)) as axes:
        _predicted(axes, fit, f"Actual against predicted time of a forward\n({where})")
    with plot(folder / f"{profile.role}_residuals.png", (7.2, 5)) as axes:
        _residuals(axes, fit, f"Residuals\n({where})")
    if len(fit.regimes) > 1:
        with plot(folder / f"{profile.role}_regimes.png", (9, 4.6), 1, 2) as pair:
            _regimes(pair, fit, f"Error by regime ({where})")
    if profile.form == "context":
        _steps(folder / f"{profile.role}_steps.png", fit, where)


def _predicted(axes: "Axes", fit: Fit, title: str) -> None:
    for place, regime in enumerate(fit.regimes):
        for part in PARTS:
            chosen = _chosen(fit, regime, part)
            if chosen:
                actual = [one.seconds * 1e3 for one in chosen]
                _points(axes, place, part, [_predict_ms(fit, one) for one in chosen], actual, regime)
    limits = [value for one in fit.observations for value in (one.seconds * 1e3, _predict_ms(fit, one))]
    ends = [max(min(limits), 1e-4), max(limits)]
    axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="predicted (ms)", ylabel="actual (ms)", title=title)
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def _residuals(axes: "Axes", fit: Fit, title: str) -> None:
    for place, regime in enumerate(fit.regimes):
        for part in PARTS:
            chosen = _chosen(fit, regime, part)
            if chosen:
                predicted = [_predict_ms(fit, one) for one in chosen]
                residuals = [one.seconds * 1e3 - _predict_ms(fit, one) for one in chosen]
                _points(axes, place, part, predicted, residuals, regime)
    axes.axhline(0, color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="predicted (ms)", ylabel="actual - predicted (ms)", title=title)
    logarithmic(axes, "x")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def _regimes(pair: Any, fit: Fit, title: str) -> None:
    units = (("mae_s", 1e3, "mean absolute error (ms)"), ("mape", 1e2, "mean absolute percentage error (%)"))
    for axes, (name, scale, label) in zip(pair, units, strict=True):
        for place, part in enumerate(PARTS):
            found = [fit.accuracy(part, regime) for regime in fit.regimes]
            heights = [(one.get(name) or 0.0) * scale for one in found]
            spots = np.arange(len(found)) + (place - 0.5) * 0.38
            axes.bar(spots, heights, 0.38, color=COLOURS[place], hatch=HATCHES[place], edgecolor="black", label=part)
        axes.set_xticks(range(len(fit.regimes)), fit.regimes)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=9)
    pair[0].figure.suptitle(title)


def _shares(axes: "Axes", fit: Fit, title: str) -> None:
    shares = {regime: fit.shares(regime) for regime in fit.regimes}
    left = np.zeros(len(shares))
    for place, name in enumerate(fit.coefficients):
        widths = np.array([found[name] * 100 for found in shares.values()])
        label = f"{SYMBOLS[name]}, per {UNITS[name].partition(' (')[0]}"
        style: dict[str, Any] = {"color": COLOURS[place], "hatch": HATCHES[place % len(HATCHES)]}
        axes.barh(range(len(shares)), widths, left=left, label=label, edgecolor="black", **style)
        left += widths
    axes.set_yticks(range(len(shares)), list(shares))
    axes.set(xlabel="share of the predicted time (%)", title=title, xlim=(0, 100))
    axes.invert_yaxis()
    figure: Any = axes.figure
    figure.legend(fontsize=9, loc="outside lower center", ncol=2)


def _steps(path: Path, fit: Fit, where: str) -> None:
    """Time against context, a line per batch size and a panel per number of new tokens."""
    grid = [one for one in fit.observations if one.configuration.part == "train"]
    counts = sorted({one.configuration.rows[0][0] for one in grid})
    with plot(path, (1.6 + 3.6 * len(counts), 4.4), 1, len(counts)) as panels:
        for axes, new in zip(np.atleast_1d(panels), counts, strict=True):
            _step_lines(axes, fit, [one for one in grid if one.configuration.rows[0][0] == new])
            axes.set(xlabel="context (tokens)", ylabel="ms per forward", title=f"{new} new", ylim=(0, None))
            axes.grid(alpha=0.3)
        axes.figure.suptitle(f"Time of a step: points measured, lines fitted\n({where})")
        axes.legend(fontsize=9, title="batch")


def _step_lines(axes: "Axes", fit: Fit, steps: list[Observation]) -> None:
    for place, batch in enumerate(sorted({len(one.configuration.rows) for one in steps})):
        chosen = [one for one in steps if len(one.configuration.rows) == batch]
        contexts = [one.configuration.rows[0][1] for one in chosen]
        measured, fitted = [one.seconds * 1e3 for one in chosen], [_predict_ms(fit, one) for one in chosen]
        axes.plot(contexts, measured, MARKERS[place], color=COLOURS[place], label=str(batch), markersize=6)
        axes.plot(contexts, fitted, color=COLOURS[place], linestyle=LINES[place], linewidth=1)


def _points(axes: "Axes", place: int, part: str, x: list[float], y: list[float], label: str) -> None:
    """Training configurations hollow, test configurations filled."""
    face = COLOURS[place] if part == "test" else "none"
    style: dict[str, Any] = {
        "markerfacecolor": face,
        "markeredgecolor": COLOURS[place],
        "linestyle": "none",
        "markersize": 6,
    }
    axes.plot(x, y, MARKERS[place], label=f"{label}, {part}", **style)


def _chosen(fit: Fit, regime: str, part: str) -> list[Observation]:
    return [one for one in fit.observations if (one.configuration.regime, one.configuration.part) == (regime, part)]


def _predict_ms(fit: Fit, one: Observation) -> float:
    return fit.predict(one.configuration) * 1e3
