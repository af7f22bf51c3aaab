"""The rows of figures that an experiment's command simulates, beside which published numbers stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from specbench_kit.serving.figures import ServingPoint, look_up

InputValue = bool | int | float | str | list[object]
"""The value of an input of an experiment, of whatever kind its option takes."""
PointValue = InputValue | None
"""The value of one axis of a grid, or a fact such as the unit of a load."""
Point = Mapping[str, PointValue]
"""Values of a grid's axes, by axis."""
Figures = Mapping[str, Any]
"""A tree of figures, whose leaves are estimates such as `{"mean": 1.5}`."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """The figures of one series at one point of a grid, whose values `point` holds by axis."""

    series: str
    point: Point
    figures: Figures

    @classmethod
    def of(cls, row: ServingPoint) -> "FigureRow":
        """Return the row of a served point: its series, and by name figures, which are objects
        themselves, and values of the point.
        """
        content = to_builtins(row)
        figures = {name: value for name, value in content.items() if isinstance(value, Mapping)}
        point = {
            name: value
            for name, value in content.items()
            if name != "series" and name not in figures
        }
        return cls(content["series"], point, figures)

    def figure(self, path: str) -> Any:
        """Return the figure at `a.b.c`; None if the row does not have it."""
        return look_up(self.figures, path)

    def lies_at(self, point: Point) -> bool:
        """Return whether the row's point has all these values."""
        return all(
            axis in self.point and self.point[axis] == value for axis, value in point.items()
        )
