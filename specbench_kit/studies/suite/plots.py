"""The figures of a suite: a policy's curve below the oracle's, and the map of the fastest
policies.
"""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.comparison.scene import curve, legend, legend_in
from specbench_kit.reports.render_html import inline_svg
from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.reports.writing.palette import (
    BASELINE_STYLE,
    BOUND_STYLE,
    GREY,
    Style,
    method_styles,
)
from specbench_kit.studies.suite.scores import Scoreboard, SuiteCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.42
DEPLOYMENT_AXIS = "deployment, and the round trip of its link"


def curves(
    board: Scoreboard, specs: Sequence[str], cells: Sequence[SuiteCell], name: str
) -> Picture:
    """Return the figure of the speedups of policies in cells, between autoregressive decoding and
    the oracle.
    """
    styles = method_styles({spec: spec for spec in specs})
    oracle = [board.oracle(cell.name) for cell in cells]

    def draw_on(axes: "Axes") -> None:
        places = range(len(cells))
        known = [
            (place, score.speedup) for place, score in zip(places, oracle, strict=True) if score
        ]
        curve(
            axes,
            BOUND_STYLE,
            [place for place, _ in known],
            [value for _, value in known],
            "oracle of the cell",
        )
        for spec in specs:
            scores = [
                (place, board.score(spec, cell.name))
                for place, cell in zip(places, cells, strict=True)
            ]
            own = [(place, score) for place, score in scores if score]
            if not own:
                continue
            style = styles[spec]
            curve(
                axes, style, [place for place, _ in own], [score.speedup for _, score in own], spec
            )
            for place, score in own:
                if bounds := score.interval:
                    axes.vlines(
                        place, bounds[0], bounds[1], color=style.colour, linewidth=4, alpha=0.25
                    )
        axes.axhline(1, color=GREY, linewidth=1, linestyle=":", label=BASELINE)
        axes.set_xticks(places, [_tick(cell) for cell in cells])
        axes.set(xlabel=DEPLOYMENT_AXIS, ylabel="speedup over autoregressive decoding")
        axes.set_ylim(bottom=0)
        legend(axes)

    note = "Bars are 95% intervals over prompts, or over batches of prompts, which hold together in a cell."
    return Picture(name, "Speedup by deployment", note, 3.0 + legend_in([*specs, "", ""]), draw_on)


def _tick(cell: SuiteCell) -> str:
    """Return a cell's deployment in two lines: edge-14, 14 ms from its verifier, is `edge` above
    `14 ms`.
    """
    if not cell.rtt_s:
        return f"{cell.deployment}\nno link"
    return f"{cell.deployment.rstrip('-0123456789')}\n{1000 * cell.rtt_s:.0f} ms"


def winners(board: Scoreboard, cells: Sequence[SuiteCell], tasks: Sequence[str]) -> Picture:
    """Return the map of the fastest deployable policy by task and deployment, each with its
    speedup.
    """
    fastest = {
        (row, column): best
        for row, task in enumerate(tasks)
        for column, cell in enumerate(cells)
        if (best := board.fastest(cell.name, task))
    }
    styles = winner_styles([spec for spec, _ in fastest.values()])

    def draw_on(axes: "Axes") -> None:
        for (row, column), (spec, speedup) in fastest.items():
            axes.bar(column, 1, 0.98, row - 0.5, color=styles[spec].colour, alpha=0.55)
            axes.text(column, row, f"{speedup:.1f}x", ha="center", va="center", fontsize=8)
        for spec, style in styles.items():
            axes.bar(0, 0, color=style.colour, alpha=0.55, label=spec)
        axes.set_xticks(range(len(cells)), [_tick(cell) for cell in cells], fontsize=7)
        axes.set_xlabel(DEPLOYMENT_AXIS)
        axes.set_yticks(range(len(tasks)), [fill(task, 16) for task in tasks])
        axes.set_ylim(len(tasks) - 0.5, -0.5)
        axes.margins(x=0)
        legend(axes)
        axes.grid(visible=False)

    note = "The fastest policy that can be deployed, one request at a time; its speedup over autoregressive decoding."
    return Picture(
        "winners",
        "Fastest policy",
        note,
        0.9 + ROW_IN * len(tasks) + legend_in(list(styles)),
        draw_on,
    )


def winner_styles(specs: Sequence[str]) -> Mapping[str, Style]:
    """Return one style for each policy that wins anywhere, the most frequent first."""
    ordered = sorted(set(specs), key=lambda spec: (-specs.count(spec), spec))
    styles = method_styles({spec: spec for spec in ordered if spec != BASELINE})
    return {spec: styles.get(spec, BASELINE_STYLE) for spec in ordered}


def drawing(picture: Picture, setting: str) -> str:
    """Return a figure as a part of a page."""
    return inline_svg(draw(picture, setting, ["svg"])["svg"].decode(), picture.name)
