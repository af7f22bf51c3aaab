"""The grid of a published experiment, and the figures that are derived from the rows at its points."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import convert
from specbench_kit.papers.figure_row import InputValue, Point, PointValue


def names_of(figures: str | Sequence[str]) -> Sequence[str]:
    """Return the names of one figure or several."""
    return [figures] if isinstance(figures, str) else figures


class Axis(Struct, forbid_unknown_fields=True):
    """An axis of a grid: the `key` of the input that it sets, and its values, or values by the
    names that they get in the rows. Where each point sets several inputs, or none, `inputs` holds
    them by the names of the points instead.
    """

    key: str = ""
    values: list[InputValue] | dict[str, InputValue] = []
    inputs: dict[str, dict[str, InputValue]] = {}

    def __post_init__(self) -> None:
        require(
            bool(self.key and self.values) != bool(self.inputs),
            "an axis has a key with values, or inputs",
        )

    @property
    def names(self) -> list[InputValue]:
        """The names of the points along the axis."""
        return list(self.inputs or self.values)

    @property
    def keys(self) -> set[str]:
        """The inputs that any point of the axis sets."""
        return {self.key} if self.key else {key for own in self.inputs.values() for key in own}

    def changes(self, name: InputValue) -> Mapping[str, InputValue]:
        """Return the inputs that the point of that name sets; a value without a name is its own."""
        if self.inputs:
            return self.inputs[str(name)]
        return {self.key: self.values[str(name)] if isinstance(self.values, dict) else name}


class Ratio(Struct, forbid_unknown_fields=True):
    """The ratio min(`of`) / min(`over`) * `factor`, at every point or between two of them: `at` is
    the numerator's point, `to` holds the denominator's different axes.
    """

    of: str | list[str]
    over: str | list[str]
    factor: float = 1.0
    at: dict[str, PointValue] = {}
    to: dict[str, PointValue] = {}


class Difference(Struct, forbid_unknown_fields=True):
    """The figure `of` less the figure `less`, at every point."""

    of: str
    less: str


class Average(Struct, forbid_unknown_fields=True):
    """The mean of several figures."""

    of: list[str]


class SpanMean(Struct, forbid_unknown_fields=True):
    """The mean of a figure over the times at which the figure `by` lies `between` two numbers."""

    of: str
    by: str
    between: tuple[float, float]
    at: dict[str, PointValue] = {}


class Pick(Struct, forbid_unknown_fields=True):
    """The `least` or `most` of one or several figures, or where on `axis` that value lies."""

    of: str | list[str]
    pick: Literal["least", "most"] = "least"
    axis: str = ""
    at: dict[str, PointValue] = {}


class Side(NamedTuple):
    """One side of the derived figure `label`: what it is of it, its figures, and the point that they
    are taken at.
    """

    label: str
    name: str
    figures: Sequence[str]
    point: Point


class Derived(Struct):
    """The grid of an experiment and the figures that are derived from its rows, each by the label
    that its row gets.
    """

    over: dict[str, Axis] = {}
    means: dict[str, SpanMean] = {}
    ratios: dict[str, Ratio] = {}
    differences: dict[str, Difference] = {}
    averages: dict[str, Average] = {}
    picks: dict[str, Pick] = {}

    @property
    def sides(self) -> Iterator[Side]:
        """The two sides of every ratio and difference."""
        for label, ratio in self.ratios.items():
            yield Side(label, "numerator", names_of(ratio.of), ratio.at)
            yield Side(label, "denominator", names_of(ratio.over), ratio.to)
        for label, difference in self.differences.items():
            yield Side(label, "minuend", [difference.of], {})
            yield Side(label, "subtrahend", [difference.less], {})


def derived_of(options: OptionValues) -> Derived:
    """Return the grid and the derived figures among the options of an experiment."""
    try:
        return convert(Derived, options)
    except ValueError as error:
        raise SkitError(f"the experiment's grid: {error}") from error
