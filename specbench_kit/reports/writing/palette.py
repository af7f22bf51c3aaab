"""The colours of every figure of the kit: one palette, and one colour for each method."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = "osD^vPX"
HATCHES = ("", "//", "..", "xx", "--")
BLACK = COLOURS[6]
GREY = "#777777"
OLIVE, INDIGO, WINE = "#8F8500", "#332288", "#882255"
"""For a seventh method and more; the palette's own yellow cannot be seen on white."""

ON_DARK = {
    "#0072B2": "#4C9BE8",
    "#E69F00": "#F2B134",
    "#009E73": "#2FC79A",
    "#D55E00": "#FF7F4D",
    "#CC79A7": "#E39AC6",
    "#56B4E9": "#9FDBFF",
    OLIVE: "#CFC65A",
    INDIGO: "#9D8CFF",
    WINE: "#C2527F",
}
"""The colours of methods, each with the same hue for a dark page."""
OF_METHODS = tuple(ON_DARK)
USUAL = ("fixed-k", "threshold", "wisp", "adaspec", "specinfer", "specedge", "specpipe")
"""Methods that have the same colour in every report; all others take what is free."""


@dataclass(frozen=True, slots=True)
class Style:
    """The look of one row of a comparison in every figure, which differs from other rows without
    colour too.
    """

    colour: str
    line: Any
    marker: str


BASELINE_STYLE = Style(BLACK, ":", "x")
BOUND_STYLE = Style(GREY, "--", "*")


def method_styles(specs: Mapping[str, str]) -> dict[str, Style]:
    """Return the style of each label, from its method's spec; a second row of one method looks like
    another method.
    """
    free = list(range(len(OF_METHODS)))
    indices: dict[str, int] = {}
    for label, spec in specs.items():
        name = spec.partition(":")[0]
        if name in USUAL and USUAL.index(name) in free:
            free.remove(indices.setdefault(label, USUAL.index(name)))
    # Colours that belong to no usual method go first, so that usual methods keep theirs from report
    # to report.
    free.sort(key=lambda index: index < len(USUAL))
    for count, label in enumerate(label for label in specs if label not in indices):
        indices[label] = free.pop(0) if free else count + len(OF_METHODS)
    styles = {}
    for label in specs:
        turn, colour = divmod(indices[label], len(OF_METHODS))
        shifted = indices[label] + turn
        styles[label] = Style(
            OF_METHODS[colour], LINES[shifted % len(LINES)], MARKERS[shifted % len(MARKERS)]
        )
    return styles
