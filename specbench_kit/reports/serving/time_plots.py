"""Figures of how a simulation goes over its time, of each series where it has the most devices."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.reports.serving.axes import legend
from specbench_kit.reports.serving.lines import Chart
from specbench_kit.reports.writing.drawing import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fields = Mapping[str, Any]

SHOWN = {
    "draft_length": ("Draft length over time", "tokens sent in a verification"),
    "batch_size": ("Batch size over time", "requests in a batch"),
    "left_waiting": ("Queue over time", "requests left waiting"),
    "load": ("Load over time", "share of time in which the server is busy"),
}
NOTE = "The first seed, each series at its last point; means over equal spans, the warm-up included."


def over_time(lines: Chart, height_in: float) -> Iterator[Picture]:
    """One picture for each measure that the rows hold."""
    if not all(look_up(line.rows[-1], "figures.over_time") for line in lines.lines):
        return
    for name, (title, label) in SHOWN.items():
        yield Picture(f"time_{name}", title, NOTE, height_in, _drawing(lines, name, label))


def _drawing(lines: Chart, name: str, label: str) -> Any:
    def draw(axes: "Axes") -> None:
        for line in lines.lines:
            found = line.rows[-1]["figures"]["over_time"]
            there = [(x, y) for x, y in zip(found["at_s"], found[name], strict=True) if y is not None]
            style = {"color": line.style.colour, "linestyle": line.style.line}
            axes.plot([x for x, _ in there], [y for _, y in there], label=line.label, **style)
        axes.set(xlabel="simulated time (s)", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        legend(axes, lines)

    return draw
