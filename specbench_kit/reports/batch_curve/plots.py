"""One line per method through its batch sizes: tokens per second of the batch against time per token of a request."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.metrics.comparison import MANY
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports.comparison.scene import legend, legend_in, short
from specbench_kit.reports.writing.drawing import Picture, draw
from specbench_kit.reports.writing.palette import BASELINE_STYLE, method_styles
from specbench_kit.reports.writing.wording import time_kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]


def draw_curves(rows: Rows, about: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by name: one figure of all methods, or one of each group where they are many."""
    labels = list(dict.fromkeys(row["method"] for row in rows))
    found: dict[str, bytes] = {}
    for group, shown in _groups(labels).items():
        picture = _picture([row for row in rows if row["method"] in shown], shown, group)
        where = (
            f"{(about.get('dataset') or {}).get('name')}, {about.get('requests')} requests, {time_kind(dict(about))}"
        )
        drawn = draw(picture, where, ("png", "svg"))
        found |= {f"{picture.name}.{suffix}": content for suffix, content in drawn.items()}
    return found


def _groups(labels: Sequence[str]) -> dict[str, list[str]]:
    if len(labels) <= MANY:
        return {"": list(labels)}
    known = methods.all()
    groups = {label: known[name].group for label in labels if (name := label.partition(":")[0]) in known}
    found = {
        group: [one for one in labels if groups.get(one, "other") == group and one != BASELINE] for group in GROUPS
    }
    return {group: [*(one for one in labels if one == BASELINE), *own] for group, own in found.items() if own}


def _picture(rows: Rows, labels: Sequence[str], group: str) -> Picture:
    styles = {BASELINE: BASELINE_STYLE} | method_styles({one: one for one in labels if one != BASELINE})

    def draw_lines(axes: "Axes") -> None:
        for label in labels:
            own = [row for row in rows if row["method"] == label]
            x, y = [1e3 * row["tpot_s"] for row in own], [row["throughput"] for row in own]
            style = styles[label]
            axes.plot(x, y, color=style.colour, linestyle=style.line, marker=style.marker, label=short(label))
            for row, place in zip(own, zip(x, y, strict=True), strict=True):
                axes.annotate(str(row["batch_size"]), place, fontsize=6, xytext=(2, 2), textcoords="offset points")
        axes.set(xlabel="mean time per output token of a request (ms)", ylabel="tokens per second of the batch")
        legend(axes)

    title = f"Throughput against TPOT{f': {group}' if group else ''}"
    note = (
        "Numbers are batch sizes. Up and to the left is better; a method pays while its line runs above plain decoding."
    )
    name = f"throughput_tpot{f'-{group}' if group else ''}"
    return Picture(name, title, note, 3.2 + legend_in(labels), draw_lines)
