"""Experiments of any command over a grid: the inputs that a point replaces, and the figures derived
from its rows.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.fields import parse_field
from specbench_kit.papers.experiment import GRID
from specbench_kit.serving.figures import look_up
from specbench_kit.studies.reproduction.averages import Rows, over_seeds

ExperimentCommand = Callable[[JsonObject, CountCallback], Rows]


def estimated_rows_of(
    command: ExperimentCommand, options: JsonObject, report: CountCallback, seeds: int
) -> Rows:
    """Return `rows_of` with an estimate over `seeds` seeds, from the option `seed` on, at every
    number.

    Derived figures are computed seed by seed, since equal seeds have the same workload: a ratio of
    two systems varies less than either of them.
    """
    first: int = options.get("seed", 0)
    rows_by_seed: list[Rows] = []
    for done in range(seeds):
        # A single seed reports its own progress; several report how many of them are done.
        progress = report if seeds == 1 else lambda _done, _planned: None
        rows_by_seed.append(rows_of(command, {**options, "seed": first + done}, progress))
        if seeds > 1:
            report(done + 1, seeds)
    return over_seeds(rows_by_seed)


def rows_of(command: ExperimentCommand, options: JsonObject, report: CountCallback) -> Rows:
    """Return the rows of every point of the grid and the figures derived from them.

    Each axis of `options["over"]` has the `key` of the input that it sets and its `values`: a list,
    or a table of values by the names that they get in the rows.
    """
    command_options = {name: value for name, value in options.items() if name not in GRID}
    points = list(points_of(options.get("over", {}), command_options))
    rows: Rows = []
    for done, (names, point_options) in enumerate(points):
        # A single run reports its own progress; a grid reports how many of its runs are done.
        progress = report if len(points) == 1 else lambda _done, _planned: None
        rows += [{**names, **row} for row in command(point_options, progress)]
        if len(points) > 1:
            report(done + 1, len(points))
    # Each kind sees the rows of the kinds before it, so that a ratio may use a mean and a pick may
    # use a ratio.
    derived = GridRows(rows)
    kinds = {
        "means": derived.means,
        "ratios": derived.ratios,
        "differences": derived.differences,
        "averages": derived.averages,
        "picks": derived.picks,
    }
    for kind, derive in kinds.items():
        derived.rows = [*derived.rows, *derive(options.get(kind, {}))]
    return derived.rows


def points_of(
    axes: Mapping[str, JsonObject], options: JsonObject
) -> Iterator[tuple[dict[str, object], JsonObject]]:
    """Yield every point of the grid: its value names by axis, and its options."""
    for names in product(*(axis["values"] for axis in axes.values())):
        point_options = options
        for axis, name in zip(axes.values(), names, strict=True):
            value = axis["values"][name] if isinstance(axis["values"], Mapping) else name
            point_options = replace_input(point_options, axis["key"], value)
        yield dict(zip(axes, names, strict=True)), point_options


Specs = Mapping[str, JsonObject]
"""The arguments of each derived figure, by the label that its row gets."""
Point = Mapping[str, object]
"""Values of a grid's axes."""


@dataclass
class GridRows:
    """Rows at the points of a grid. A figure of them is named `series/metric`."""

    rows: Rows

    def ratios(self, specs: Specs) -> Rows:
        """Return min(`of`) / min(`over`) * `factor` at every point, or between the two points `at`
        and `to`.
        """
        return [
            {"series": label, **row} for label, spec in specs.items() for row in self._ratio(**spec)
        ]

    def differences(self, specs: Specs) -> Rows:
        """Return `of` less `less` at every point, as a gain in points of a speedup is stated."""
        return [
            {"series": label, **row}
            for label, spec in specs.items()
            for row in self._difference(**spec)
        ]

    def picks(self, specs: Specs) -> Rows:
        """Return the `least` or `most` of one or several figures, or where on `axis` that value
        lies.
        """
        return [
            {"series": label, "value": {"mean": self._pick(**spec)}}
            for label, spec in specs.items()
        ]

    def averages(self, specs: Specs) -> Rows:
        """Return the mean of several figures, as papers state a gain over all of their settings."""
        return [
            {"series": label, "value": {"mean": self._average(spec["of"])}}
            for label, spec in specs.items()
        ]

    def means(self, specs: Specs) -> Rows:
        """Return the mean of a figure over the times at which the figure `by` lies `between` two
        numbers.
        """
        return [
            {"series": label, "value": {"mean": self._mean(**spec)}}
            for label, spec in specs.items()
        ]

    def _ratio(
        self,
        of: str | Sequence[str],
        over: str | Sequence[str],
        factor: float = 1.0,
        at: Point | None = None,
        to: Point | None = None,
    ) -> Iterator[JsonObject]:
        """Yield the rows of a ratio: `at` is the numerator's point, `to` holds the denominator's
        different axes.
        """
        first, *alternatives = [of] if isinstance(of, str) else of
        for row, value in self._figures(first, at or {}):
            point = _axes(row)
            numerator = min(
                [
                    value,
                    *(figure for name in alternatives for _, figure in self._figures(name, point)),
                ]
            )
            below = [over] if isinstance(over, str) else over
            denominator = min(self._figure(name, {**point, **(to or {})}) for name in below)
            yield {**({} if at else point), "ratio": {"mean": factor * numerator / denominator}}

    def _difference(self, of: str, less: str) -> Iterator[JsonObject]:
        for row, value in self._figures(of, {}):
            yield {**_axes(row), "difference": {"mean": value - self._figure(less, _axes(row))}}

    def _pick(
        self, of: str | Sequence[str], pick: str = "least", axis: str = "", at: Point | None = None
    ) -> float:
        names = [of] if isinstance(of, str) else of
        figures = [figure for name in names for figure in self._figures(name, at or {})]
        row, value = (min if pick == "least" else max)(figures, key=lambda figure: figure[1])
        return float(row[axis] if axis else value)

    def _average(self, of: Sequence[str]) -> float:
        return fmean(self._figure(name, {}) for name in of)

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
        return [
            (row, float(look_up(row, metric)["mean"]))
            for row in self._rows_with(series, metric, at)
        ]

    def _rows_with(self, series: str, metric: str, at: Point) -> list[JsonObject]:
        rows = [
            row
            for row in self.rows
            if row["series"] == series and look_up(row, metric) and at.items() <= row.items()
        ]
        require(bool(rows), f"no figure {series}/{metric} at {dict(at)}")
        return rows


def _axes(row: JsonObject) -> JsonObject:
    """Return the point of the grid at which a row lies."""
    return {
        name: entry
        for name, entry in row.items()
        if name != "series" and not isinstance(entry, Mapping)
    }


def parse_changes(texts: Sequence[str]) -> dict[str, object]:
    """Return the inputs that `--set` changes, by name.

    A list is written as in TOML, `scheduler=["fcfs", "edf"]`, or an entry at a time, with the name
    given several times: commas cannot part its entries, since they part the options of a scheduler
    too.
    """
    changes: dict[str, object] = {}
    for text in texts:
        key, value = parse_field(text)
        entries = _parse_list(value) if isinstance(value, str) else None
        new = value if entries is None else entries
        if key in changes:
            new = [*_entries(changes[key]), *_entries(new)]
        changes[key] = new
    return changes


def _parse_list(text: str) -> list[object] | None:
    """Return the entries of a list that is written as in TOML; None if the text is no list."""
    if not text.startswith("["):
        return None
    try:
        entries: list[object] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise SkitError(f'--set: a list is written as ["fcfs", "edf"], not {text}') from error
    return entries


def _entries(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def replace_input(options: JsonObject, key: str, value: object) -> dict[str, object]:
    """Return the options with one input replaced.

    `key` is an option, `option.key` for a key inside the option's specs, `series.NAME.option` (NAME may be `*`), or
    else a field of the deployment.
    """
    head, _, tail = key.partition(".")
    if not tail:
        return {**options, key: _of_same_kind(options.get(key), value)}
    if head == "series":
        series = options["series"]
        name = series_name(series, tail)
        inner_key = tail.removeprefix(f"{name}.")
        # Series of several laws have an input each in common; the others keep theirs.
        all_series = {
            label: entry
            for label, entry in series.items()
            if "law" not in entry or inner_key in entry
        }
        chosen = all_series if name == "*" else {name: series[name]}
        changed = {label: replace_input(entry, inner_key, value) for label, entry in chosen.items()}
        return {**options, "series": {**series, **changed}}
    if head in options and isinstance(options[head], str | list):
        return {**options, head: _replace_in_specs(options[head], tail, value)}
    return {**options, "replaced": [*options.get("replaced", []), f"{key}={value}"]}


def series_name(series: JsonObject, tail: str) -> str:
    """Return the name at the beginning of `tail`: the longest match, since a name may hold dots."""
    matches = [name for name in ("*", *series) if tail.startswith(f"{name}.")]
    if not matches:
        raise SkitError(
            f"--set series.{tail}: write series.NAME.INPUT, or series.*.INPUT for all series; the "
            f"series: {', '.join(series)}"
        )
    return max(matches, key=len)


def _of_same_kind(previous: object, value: object) -> object:
    """Return the value, or every entry of a list, in the form of the previous one: in a list, or as
    text.
    """
    if isinstance(previous, list):
        return [_of_same_kind(previous[0], entry) for entry in _entries(value)]
    return str(value) if isinstance(previous, str) else value


def _replace_in_specs(specs: str | list[str], key: str, value: object) -> object:
    """Return the specs, with the value replaced in those that have this key."""
    if isinstance(specs, list):
        return [_replace_in_specs(spec, key, value) for spec in specs]
    name, _, tail = specs.partition(":")
    pairs = dict(item.partition("=")[::2] for item in tail.split(",")) if tail else {}
    if key not in pairs:
        return specs
    return f"{name}:" + ",".join(f"{k}={value if k == key else v}" for k, v in pairs.items())
