"""The map of the fastest method over two axes of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.stored import Row
from specbench_kit.reports.sweep.plots import FORMATS, PlottedAxis
from specbench_kit.reports.sweep.wording import axis_in_words
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import BASELINE_STYLE, method_styles


def write_map(folder: Path, fastest: Sequence[Row], axes: Sequence[PlottedAxis], where: str) -> None:
    """Write a cell for each pair of values, in the colour of its fastest method and with that method's speedup.

    Write nothing unless exactly two axes have several values.
    """
    from matplotlib import rc_context

    varied = [axis for axis in axes if len(axis.values) > 1]
    if len(varied) != 2:
        return
    rows, columns = varied
    methods = list(dict.fromkeys(winner["method"] for winner in fastest))
    styles = method_styles({name: name for name in methods if name != BASELINE})
    colours = {name: styles.get(name, BASELINE_STYLE).colour for name in methods}
    size = (3.5 + 1.2 * len(columns.values), 2 + 0.6 * len(rows.values))
    with rc_context({"svg.hashsalt": "skit"}), plot(folder / "fastest.png", size, formats=FORMATS) as drawn:
        for winner in fastest:
            x, y = (axis.values.index(winner["place"][axis.key]) for axis in (columns, rows))
            drawn.bar(x, 1, 1, y - 0.5, color=colours[winner["method"]], alpha=0.6)
            drawn.text(x, y, f"{winner['speedup']:.2f}x", ha="center", va="center", fontsize=9)
        for name, colour in colours.items():
            drawn.bar(0, 0, color=colour, alpha=0.6, label=name)
        drawn.set_xticks(range(len(columns.values)), [str(value) for value in columns.values])
        drawn.set_yticks(range(len(rows.values)), [str(value) for value in rows.values])
        drawn.set(
            xlabel=axis_in_words(columns.key),
            ylabel=axis_in_words(rows.key),
            title=f"Fastest method and its speedup, modelled\n({where})",
        )
        drawn.margins(0)
        drawn.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
