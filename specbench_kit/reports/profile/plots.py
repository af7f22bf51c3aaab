"""Plots of a latency profile, as PNG and SVG files that can be read without colour."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specbench_kit.profilers.base import DERIVED, Profile
from specbench_kit.profilers.fit import Accuracy, Fit, Observation
from specbench_kit.reports.sections.profiles import PARTS as TITLES
from specbench_kit.reports.sections.profiles import SYMBOLS, UNITS
from specbench_kit.reports.writing.drawing import logarithmic, plot
from specbench_kit.reports.writing.palette import COLOURS, GREY, HATCHES, LINES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("train", "test")


def write_plots(folder: Path, profile: Profile, fit: Fit) -> None:
    """Write every plot of one profile; file names begin with its role."""
    folder.mkdir(parents=True, exist_ok=True)
    where = f"{profile.model} as {profile.role} on {profile.device}, {profile.dtype}, {profile.source}"
    with plot(folder / f"{profile.role}_shares.png", (6.4, 0.6 * len(fit.regimes) + 1.8)) as axes:
        _shares(axes, fit, f"Parts of the predicted time\n({where})")
    if profile.source in DERIVED:
        return
    with plot(folder / f"{profile.role}_predicted.png", (6.4, 6)) as axes:
        _scatter(axes, fit, residuals=False)
        actual_ms = [observation.seconds * 1e3 for observation in fit.observations]
        times_ms = [*actual_ms, *(_predict_ms(fit, observation) for observation in fit.observations)]
        ends = [max(min(times_ms), 1e-4), max(times_ms)]
        axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=":")
        axes.set(ylabel="actual (ms)", title=f"Actual against predicted time of a forward\n({where})")
        logarithmic(axes, "y")
    with plot(folder / f"{profile.role}_residuals.png", (7.2, 5)) as axes:
        _scatter(axes, fit, residuals=True)
        axes.axhline(0, color=GREY, linewidth=1, linestyle=":")
        axes.set(ylabel="actual - predicted (ms)", title=f"Residuals\n({where})")
    if len(fit.regimes) > 1:
        with plot(folder / f"{profile.role}_regimes.png", (9, 4.6), 1, 2) as panels:
            _regimes(panels, fit, f"Error by regime ({where})")
    if profile.form == "context":
        _steps(folder / f"{profile.role}_steps.png", fit, where)


def _scatter(axes: "Axes", fit: Fit, *, residuals: bool) -> None:
    """Draw actual times or residuals over predicted ones: training configurations hollow, test ones filled."""
    for index, regime in enumerate(fit.regimes):
        for part in PARTS:
            observations = [
                observation
                for observation in fit.observations
                if (observation.configuration.regime, observation.configuration.part) == (regime, part)
            ]
            if not observations:
                continue
            x = [_predict_ms(fit, observation) for observation in observations]
            y = [
                observation.seconds * 1e3 - residuals * predicted
                for observation, predicted in zip(observations, x, strict=True)
            ]
            face = COLOURS[index] if part == "test" else "none"
            axes.plot(
                x,
                y,
                MARKERS[index],
                label=f"{regime}, {part}",
                markerfacecolor=face,
                markeredgecolor=COLOURS[index],
                linestyle="none",
                markersize=6,
            )
    axes.set(xlabel="predicted (ms)")
    logarithmic(axes, "x")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def _regimes(panels: "Iterable[Axes]", fit: Fit, title: str) -> None:
    figures: tuple[tuple[Callable[[Accuracy], float | None], float, str], ...] = (
        (lambda accuracy: accuracy.mae_s, 1e3, "mean absolute error (ms)"),
        (lambda accuracy: accuracy.mape, 1e2, "mean absolute percentage error (%)"),
    )
    for axes, (of, scale, label) in zip(panels, figures, strict=True):
        for index, part in enumerate(PARTS):
            heights = [(of(fit.accuracy(part, regime)) or 0.0) * scale for regime in fit.regimes]
            x = np.arange(len(heights)) + (index - 0.5) * 0.38
            axes.bar(x, heights, 0.38, color=COLOURS[index], hatch=HATCHES[index], edgecolor="black", label=part)
        axes.set_xticks(range(len(fit.regimes)), fit.regimes)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=9)
    axes.figure.suptitle(title)


def _shares(axes: "Axes", fit: Fit, title: str) -> None:
    shares = {regime: fit.shares(regime) for regime in fit.regimes}
    left = np.zeros(len(shares))
    names = next(iter(shares.values())) if fit.derived else fit.coefficients
    for index, name in enumerate(names):
        widths = np.array([parts[name] * 100 for parts in shares.values()])
        label = TITLES[name] if fit.derived else f"{SYMBOLS[name]}, per {UNITS[name].partition(' (')[0]}"
        hatch = HATCHES[index % len(HATCHES)]
        axes.barh(
            range(len(shares)), widths, left=left, label=label, edgecolor="black", color=COLOURS[index], hatch=hatch
        )
        left += widths
    axes.set_yticks(range(len(shares)), list(shares))
    axes.set(xlabel="share of the predicted time (%)", title=title, xlim=(0, 100))
    axes.invert_yaxis()
    axes.figure.legend(fontsize=9, loc="outside lower center", ncol=2)


def _steps(path: Path, fit: Fit, where: str) -> None:
    """Draw time against context: a panel per number of new tokens, a line per batch size."""
    grid = [observation for observation in fit.observations if observation.configuration.part == "train"]
    counts = sorted({observation.configuration.rows[0][0] for observation in grid})
    with plot(path, (1.6 + 3.6 * len(counts), 4.4), 1, len(counts)) as panels:
        for axes, new in zip(np.atleast_1d(panels), counts, strict=True):
            steps = [observation for observation in grid if observation.configuration.rows[0][0] == new]
            for index, batch in enumerate(sorted({len(step.configuration.rows) for step in steps})):
                line = [step for step in steps if len(step.configuration.rows) == batch]
                contexts = [step.configuration.rows[0][1] for step in line]
                colour = COLOURS[index]
                measured_ms = [step.seconds * 1e3 for step in line]
                axes.plot(contexts, measured_ms, MARKERS[index], color=colour, label=str(batch), markersize=6)
                fitted_ms = [_predict_ms(fit, step) for step in line]
                axes.plot(contexts, fitted_ms, color=colour, linestyle=LINES[index], linewidth=1)
            axes.set(xlabel="context (tokens)", ylabel="ms per forward", title=f"{new} new", ylim=(0, None))
            axes.grid(alpha=0.3)
        axes.figure.suptitle(f"Time of a step: points measured, lines fitted\n({where})")
        axes.legend(fontsize=9, title="batch")


def _predict_ms(fit: Fit, observation: Observation) -> float:
    return fit.predict(observation.configuration) * 1e3
