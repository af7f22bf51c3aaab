"""The lines of a figure: which rows of a summary form a line, and what the horizontal axis is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.reports.document import Row
from specbench_kit.reports.writing.palette import LINES, MARKERS, OF_METHODS, Style

NAMES = {
    "devices": "devices",
    "slo_scale": "SLO scale (times the time per token)",
    "estimator_factor": "estimated over true time",
    "estimator_noise": "noise of the estimator (log-normal)",
    "guard_s": "guard time (s)",
    "slo": "promised speed",
}
"""The label of each axis; the first axis with several values becomes the horizontal one."""
SHORT = {"slo_scale": "SLO x", "estimator_factor": "estimate x", "estimator_noise": "noise ", "guard_s": "guard "}


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line: rows that differ only in the value of the chart's axis, in the order of that axis."""

    label: str
    style: Style
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Chart:
    """All lines along one axis."""

    axis: str
    lines: Sequence[ChartLine]

    @property
    def numeric(self) -> bool:
        """True if the values of the axis are numbers."""
        return self.axis != "slo"

    @property
    def has_lines(self) -> bool:
        """True if some line has several points; a chart without lines is drawn as bars."""
        return any(len(line.rows) > 1 for line in self.lines)

    def x(self, line: ChartLine) -> list[Any]:
        """Return the values of the axis at a line's rows; those of the SLO axis are names."""
        return [row[self.axis] if self.numeric else slo_in_words(str(row[self.axis])) for row in line.rows]


def chart(rows: Sequence[Row]) -> Chart:
    """Return the rows as lines along the first axis that has several values."""
    varied = [name for name in NAMES if len({row[name] for row in rows if row.get(name) is not None}) > 1]
    axis = next(iter(varied), "slo" if rows and "devices" not in rows[0] else "devices")
    fixed = [name for name in varied if name != axis]
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["series"], *(row.get(name) for name in fixed)), []).append(row)
    series = list(dict.fromkeys(key[0] for key in groups))
    lines_of_series = dict.fromkeys(series, 0)
    lines = []
    for key, members in groups.items():
        # Lines of one series share a colour and differ in dashes and markers.
        hue = series.index(key[0])
        number = series.index(key[0]) + lines_of_series[key[0]]
        style = Style(OF_METHODS[hue % len(OF_METHODS)], LINES[number % len(LINES)], MARKERS[number % len(MARKERS)])
        lines_of_series[key[0]] += 1
        lines.append(ChartLine(", ".join(filter(None, [str(key[0]), axis_values(members[0], fixed)])), style, members))
    return Chart(axis, lines)


def axis_values(row: Row, axes: Sequence[str]) -> str:
    """Return a row's values of some axes in words."""
    return ", ".join(_axis_value(axis, row[axis]) for axis in axes if row.get(axis) is not None)


def _axis_value(axis: str, value: object) -> str:
    if axis == "slo":
        return slo_in_words(str(value))
    if axis == "devices":
        return f"{value} devices"
    return f"{SHORT[axis]}{value:g}{' s' if axis == 'guard_s' else ''}"
