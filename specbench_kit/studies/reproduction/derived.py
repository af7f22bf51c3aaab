"""What follows from the rows of an experiment: ratios of figures, the least or most of some, means over a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.renamed import current_name
from specbench_kit.metrics.serving_rows import look_up

Row = dict[str, Any]
Asked = Mapping[str, Mapping[str, Any]]
Place = Mapping[str, Any]


@dataclass
class Derived:
    """Of rows at the places of a grid. A figure is named "series/metric", and what is asked for has labels."""

    rows: list[Row]

    def ratios(self, asked: Asked) -> list[Row]:
        """`of`, or the least of several, over `over`, times a `factor`: at every place, or between two named ones."""
        return [{"series": label, **row} for label, one in asked.items() for row in self._ratio(**one)]

    def picks(self, asked: Asked) -> list[Row]:
        """The `least` or `most` of one or several figures; with an `axis`, where on it that is."""
        return [{"series": label, "value": {"mean": self._pick(**one)}} for label, one in asked.items()]

    def means(self, asked: Asked) -> list[Row]:
        """Of a figure over time, from where another one lies `between` two numbers."""
        return [{"series": label, "value": {"mean": self._mean(**one)}} for label, one in asked.items()]

    def _ratio(
        self, of: str | Sequence[str], over: str, factor: float = 1.0, at: Place | None = None, to: Place | None = None
    ) -> Iterator[Row]:
        """`at` is the place of the upper figure, `to` what is another at that of the lower."""
        first, *others = _several(of)
        for row, value in self._figures(first, at or {}):
            place = _place(row)
            above = min([value, *(one for name in others for _, one in self._figures(name, place))])
            (below,) = [one for _, one in self._figures(over, {**place, **(to or {})})]
            yield {**({} if at else place), "ratio": {"mean": factor * above / below}}

    def _pick(self, of: str | Sequence[str], pick: str = "least", axis: str = "", at: Place | None = None) -> float:
        found = [one for name in _several(of) for one in self._figures(name, at or {})]
        row, value = (min if pick == "least" else max)(found, key=lambda one: one[1])
        return float(row[axis] if axis else value)

    def _mean(self, of: str, by: str, between: Sequence[float], at: Place | None = None) -> float:
        series, _, metric = of.rpartition("/")
        low, high = between
        pairs = [
            value
            for row in self._there(series, metric, at or {})
            for value, other in zip(look_up(row, metric), look_up(row, by), strict=True)
            if value is not None and other is not None and low <= other < high
        ]
        if not pairs:
            raise SkitError(f"{of}: {by} never lies between {low} and {high}")
        return fmean(pairs)

    def _figures(self, name: str, at: Place) -> list[tuple[Row, float]]:
        series, _, metric = name.rpartition("/")
        metric = current_name(metric, f"the figure {name}")
        return [(row, float(look_up(row, metric)["mean"])) for row in self._there(series, metric, at)]

    def _there(self, series: str, metric: str, at: Place) -> list[Row]:
        found = [
            row
            for row in self.rows
            if row["series"] == series and look_up(row, metric) and all(row.get(a) == v for a, v in at.items())
        ]
        if not found:
            raise SkitError(f"no figure {series}/{metric} at {dict(at)}")
        return found


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _place(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "series" and not isinstance(value, Mapping)}
