"""What runs along the axis of a figure, and which rows make a line in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench_kit.reports.writing.palette import LINES, MARKERS, OF_METHODS, Style

Fields = Mapping[str, Any]

NAMES = {
    "devices": "devices",
    "slo_scale": "SLO scale (times the time per token)",
    "estimator_factor": "estimated over true time",
    "estimator_noise": "noise of the estimator (log-normal)",
    "guard_s": "guard time (s)",
    "slo": "SLO",
}
"""Axes by what is best drawn from left to right, in words."""
SHORT = {"slo_scale": "SLO x", "estimator_factor": "estimate x", "estimator_noise": "noise ", "guard_s": "guard "}


@dataclass(frozen=True, slots=True)
class Line:
    """One series along the axis, other axes held; rows lie in the order of the axis."""

    label: str
    style: Style
    rows: Sequence[Fields]


@dataclass(frozen=True, slots=True)
class Chart:
    """All lines along one axis; `numeric` where its values are numbers."""

    axis: str
    lines: Sequence[Line]

    @property
    def numeric(self) -> bool:
        """Whether there is a scale between the values."""
        return self.axis != "slo"

    @property
    def several(self) -> bool:
        """Whether there is more than one place on the axis."""
        return any(len(line.rows) > 1 for line in self.lines)

    def x(self, line: Line) -> list[Any]:
        """Places on the axis."""
        return [row[self.axis] for row in line.rows]


def chart(rows: Sequence[Fields], axis: str | None = None) -> Chart:
    """The rows along the first axis that takes several values, or along one's own choice."""
    varied = [name for name in NAMES if len({row[name] for row in rows if row.get(name) is not None}) > 1]
    along = axis or next(iter(varied), "slo" if rows and "devices" not in rows[0] else "devices")
    held = [name for name in varied if name != along]
    groups: dict[tuple[Any, ...], list[Fields]] = {}
    for row in rows:
        groups.setdefault((row["series"], *(row.get(name) for name in held)), []).append(row)
    hues = list(dict.fromkeys(key[0] for key in groups))
    turns = dict.fromkeys(hues, 0)
    lines = []
    for key, members in groups.items():
        style = _style(hues.index(key[0]), turns[key[0]])
        turns[key[0]] += 1
        lines.append(Line(_label(key, held), style, members))
    return Chart(along, lines)


def place(row: Fields, axes: Sequence[str]) -> str:
    """Values of some axes in words."""
    return ", ".join(_value(axis, row[axis]) for axis in axes if row.get(axis) is not None)


def _label(key: tuple[Any, ...], held: Sequence[str]) -> str:
    parts = [_value(axis, value) for axis, value in zip(held, key[1:], strict=True) if value is not None]
    return ", ".join([key[0], *parts])


def _value(axis: str, value: Any) -> str:
    if axis == "slo":
        return f"SLO {value}"
    if axis == "devices":
        return f"{value} devices"
    return f"{SHORT[axis]}{value:g}{' s' if axis == 'guard_s' else ''}"


def _style(hue: int, turn: int) -> Style:
    """A colour for each series, a line and a marker for each of its lines."""
    number = hue + turn
    return Style(OF_METHODS[hue % len(OF_METHODS)], LINES[number % len(LINES)], MARKERS[number % len(MARKERS)])
