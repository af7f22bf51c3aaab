"""Figures derived from the rows of an experiment: ratios, differences, minima or maxima, and means over a time span."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from specbench_kit.core.errors import require
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.serving_rows import look_up
from specbench_kit.studies.reproduction.rows import Rows

Specs = Mapping[str, JsonObject]
"""The arguments of each derived figure, by the label that its row gets."""
Point = Mapping[str, object]
"""Values of a grid's axes."""


@dataclass
class GridRows:
    """Rows at the points of a grid. A figure of them is named `series/metric`."""

    rows: Rows

    def ratios(self, specs: Specs) -> Rows:
        """Return min(`of`) / min(`over`) * `factor` at every point, or between the two points `at` and `to`."""
        return [{"series": label, **row} for label, spec in specs.items() for row in self._ratio(**spec)]

    def differences(self, specs: Specs) -> Rows:
        """Return `of` less `less` at every point, as a gain in points of a speedup is stated."""
        return [{"series": label, **row} for label, spec in specs.items() for row in self._difference(**spec)]

    def picks(self, specs: Specs) -> Rows:
        """Return the `least` or `most` of one or several figures, or where on `axis` that value lies."""
        return [{"series": label, "value": {"mean": self._pick(**spec)}} for label, spec in specs.items()]

    def averages(self, specs: Specs) -> Rows:
        """Return the mean of several figures, as papers state a gain over all of their settings."""
        return [
            {"series": label, "value": {"mean": fmean(self._figure(name, {}) for name in spec["of"])}}
            for label, spec in specs.items()
        ]

    def means(self, specs: Specs) -> Rows:
        """Return the mean of a figure over the times at which the figure `by` lies `between` two numbers."""
        return [{"series": label, "value": {"mean": self._mean(**spec)}} for label, spec in specs.items()]

    def _ratio(
        self,
        of: str | Sequence[str],
        over: str | Sequence[str],
        factor: float = 1.0,
        at: Point | None = None,
        to: Point | None = None,
    ) -> Iterator[JsonObject]:
        """Yield the rows of a ratio: `at` is the numerator's point, `to` holds the denominator's different axes."""
        first, *alternatives = [of] if isinstance(of, str) else of
        for row, value in self._figures(first, at or {}):
            point = _axes(row)
            numerator = min([value, *(figure for name in alternatives for _, figure in self._figures(name, point))])
            below = [over] if isinstance(over, str) else over
            denominator = min(self._figure(name, {**point, **(to or {})}) for name in below)
            yield {**({} if at else point), "ratio": {"mean": factor * numerator / denominator}}

    def _difference(self, of: str, less: str) -> Iterator[JsonObject]:
        for row, value in self._figures(of, {}):
            yield {**_axes(row), "difference": {"mean": value - self._figure(less, _axes(row))}}

    def _pick(self, of: str | Sequence[str], pick: str = "least", axis: str = "", at: Point | None = None) -> float:
        names = [of] if isinstance(of, str) else of
        figures = [figure for name in names for figure in self._figures(name, at or {})]
        row, value = (min if pick == "least" else max)(figures, key=lambda figure: figure[1])
        return float(row[axis] if axis else value)

    def _mean(self, of: str, by: str, between: Sequence[float], at: Point | None = None) -> float:
        series, _, metric = of.rpartition("/")
        low, high = between
        values = [
            value
            for row in self._rows_with(series, metric, at or {})
            for value, level in zip(look_up(row, metric), look_up(row, by), strict=True)
            if value is not None and level is not None and low <= level < high
        ]
        require(bool(values), f"{of}: {by} never lies between {low} and {high}")
        return fmean(values)

    def _figure(self, name: str, at: Point) -> float:
        """Return the one figure of that name at a point."""
        ((_, value),) = self._figures(name, at)
        return value

    def _figures(self, name: str, at: Point) -> list[tuple[JsonObject, float]]:
        """Return the rows that have the figure at that point, each with its value."""
        series, _, metric = name.rpartition("/")
        return [(row, float(look_up(row, metric)["mean"])) for row in self._rows_with(series, metric, at)]

    def _rows_with(self, series: str, metric: str, at: Point) -> list[JsonObject]:
        rows = [
            row
            for row in self.rows
            if row["series"] == series
            and look_up(row, metric)
            and all(row.get(axis) == value for axis, value in at.items())
        ]
        require(bool(rows), f"no figure {series}/{metric} at {dict(at)}")
        return rows


def _axes(row: JsonObject) -> JsonObject:
    """Return the point of the grid at which a row lies."""
    return {name: entry for name, entry in row.items() if name != "series" and not isinstance(entry, Mapping)}
