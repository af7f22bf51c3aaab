"""Experiments of any command over a grid: the inputs that a point replaces, and the figures derived
from its rows.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.progress import CountCallback
from specbench_kit.deployments.fields import parse_field
from specbench_kit.papers.derived import (
    Average,
    Axis,
    Difference,
    Pick,
    Ratio,
    SpanMean,
    derived_of,
    names_of,
)
from specbench_kit.papers.experiment import GRID, SeedOptions, series_of
from specbench_kit.papers.figure_row import FigureRow, InputValue, Point, PointValue
from specbench_kit.studies.reproduction.averages import Rows, over_seeds

ExperimentCommand = Callable[[OptionValues, CountCallback], Rows]


def estimated_rows_of(
    command: ExperimentCommand, options: OptionValues, report: CountCallback, seeds: int
) -> Rows:
    """Return `rows_of` with an estimate over `seeds` seeds, from the option `seed` on, at every
    number.

    Derived figures are computed seed by seed, since equal seeds have the same workload: a ratio of
    two systems varies less than either of them.
    """
    first = SeedOptions.of(options).seed
    rows_by_seed: list[Rows] = []
    for done in range(seeds):
        # A single seed reports its own progress; several report how many of them are done.
        progress = report if seeds == 1 else lambda _done, _planned: None
        rows_by_seed.append(rows_of(command, {**options, "seed": first + done}, progress))
        if seeds > 1:
            report(done + 1, seeds)
    return over_seeds(rows_by_seed)


def rows_of(command: ExperimentCommand, options: OptionValues, report: CountCallback) -> Rows:
    """Return the rows of every point of the grid and the figures derived from them."""
    command_options = {name: value for name, value in options.items() if name not in GRID}
    derived = derived_of(options)
    points = list(points_of(derived.over, command_options))
    grid = GridRows([])
    for done, (names, point_options) in enumerate(points):
        # A single run reports its own progress; a grid reports how many of its runs are done.
        progress = report if len(points) == 1 else lambda _done, _planned: None
        grid.rows += [
            replace(row, point={**names, **row.point}) for row in command(point_options, progress)
        ]
        if len(points) > 1:
            report(done + 1, len(points))
    # Each kind sees the rows of the kinds before it, so that a ratio may use a mean and a pick may
    # use a ratio.
    grid.rows += grid.means(derived.means)
    grid.rows += grid.ratios(derived.ratios)
    grid.rows += grid.differences(derived.differences)
    grid.rows += grid.averages(derived.averages)
    grid.rows += grid.picks(derived.picks)
    return grid.rows


def points_of(
    axes: Mapping[str, Axis], options: OptionValues
) -> Iterator[tuple[dict[str, PointValue], OptionValues]]:
    """Yield every point of the grid: its value names by axis, and its options."""
    for names in product(*(axis.names for axis in axes.values())):
        point_options = options
        for axis, name in zip(axes.values(), names, strict=True):
            for key, value in axis.changes(name).items():
                point_options = replace_input(point_options, key, value)
        yield dict(zip(axes, names, strict=True)), point_options


@dataclass
class GridRows:
    """Rows at the points of a grid. A figure of them is named `series/metric`."""

    rows: Rows

    def ratios(self, ratios: Mapping[str, Ratio]) -> Rows:
        """Return the rows of every ratio."""
        return [row for label, ratio in ratios.items() for row in self._ratio(label, ratio)]

    def differences(self, differences: Mapping[str, Difference]) -> Rows:
        """Return `of` less `less` at every point, as a gain in points of a speedup is stated."""
        return [
            _figure_row(
                label, row.point, "difference", value - self._figure(wanted.less, row.point)
            )
            for label, wanted in differences.items()
            for row, value in self._figures(wanted.of, {})
        ]

    def picks(self, picks: Mapping[str, Pick]) -> Rows:
        """Return the chosen figures, or where they lie."""
        return [_figure_row(label, {}, "value", self._pick(pick)) for label, pick in picks.items()]

    def averages(self, averages: Mapping[str, Average]) -> Rows:
        """Return the mean of several figures, as papers state a gain over all of their settings."""
        return [
            _figure_row(label, {}, "value", fmean(self._figure(name, {}) for name in average.of))
            for label, average in averages.items()
        ]

    def means(self, means: Mapping[str, SpanMean]) -> Rows:
        """Return the means over spans of time."""
        return [_figure_row(label, {}, "value", self._mean(mean)) for label, mean in means.items()]

    def _ratio(self, label: str, ratio: Ratio) -> Iterator[FigureRow]:
        first, *alternatives = names_of(ratio.of)
        for row, value in self._figures(first, ratio.at):
            others = (
                figure for name in alternatives for _, figure in self._figures(name, row.point)
            )
            numerator = min([value, *others])
            denominator = min(
                self._figure(name, {**row.point, **ratio.to}) for name in names_of(ratio.over)
            )
            point = {} if ratio.at else row.point
            yield _figure_row(label, point, "ratio", ratio.factor * numerator / denominator)

    def _pick(self, wanted: Pick) -> float:
        figures = [
            figure for name in names_of(wanted.of) for figure in self._figures(name, wanted.at)
        ]
        choose = min if wanted.pick == "least" else max
        row, value = choose(figures, key=lambda figure: figure[1])
        return float(str(row.point[wanted.axis])) if wanted.axis else value

    def _mean(self, wanted: SpanMean) -> float:
        series, _, metric = wanted.of.rpartition("/")
        low, high = wanted.between
        values = [
            value
            for row in self._rows_with(series, metric, wanted.at)
            for value, level in zip(row.figure(metric), row.figure(wanted.by), strict=True)
            if value is not None and level is not None and low <= level < high
        ]
        require(bool(values), f"{wanted.of}: {wanted.by} never lies between {low:g} and {high:g}")
        return fmean(values)

    def _figure(self, name: str, at: Point) -> float:
        """Return the one figure of that name at a point."""
        ((_, value),) = self._figures(name, at)
        return value

    def _figures(self, name: str, at: Point) -> list[tuple[FigureRow, float]]:
        """Return the rows that have the figure at that point, each with its value."""
        series, _, metric = name.rpartition("/")
        return [
            (row, float(row.figure(metric)["mean"])) for row in self._rows_with(series, metric, at)
        ]

    def _rows_with(self, series: str, metric: str, at: Point) -> Rows:
        rows = [
            row
            for row in self.rows
            if row.series == series and row.figure(metric) and row.lies_at(at)
        ]
        require(bool(rows), f"no figure {series}/{metric} at {dict(at)}")
        return rows


def _figure_row(label: str, point: Point, figure: str, value: float) -> FigureRow:
    return FigureRow(label, point, {figure: {"mean": value}})


Changes = Mapping[str, InputValue]
"""The inputs that `--set` changes, by name."""


def parse_changes(texts: Sequence[str]) -> Changes:
    """Return the inputs that `--set` changes, by name.

    A list is written as in TOML, `scheduler=["fcfs", "edf"]`, or an entry at a time, with the name
    given several times: commas cannot part its entries, since they part the options of a scheduler
    too.
    """
    changes: dict[str, InputValue] = {}
    for text in texts:
        key, value = parse_field(text)
        entries = _parse_list(value) if isinstance(value, str) else None
        new: InputValue = value if entries is None else entries
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


def replace_input(options: OptionValues, key: str, value: object) -> OptionValues:
    """Return the options with one input replaced.

    `key` is an option, `option.key` for a key inside the option's specs, `series.NAME.option` (NAME may be `*`), or
    else a field of the deployment.
    """
    head, _, tail = key.partition(".")
    if not tail:
        return {**options, key: _of_same_kind(options.get(key), value)}
    if head == "series":
        series = series_of(options)
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
    specs = options.get(head)
    if isinstance(specs, str | list):
        return {**options, head: _replace_in_specs(specs, tail, value)}
    return {**options, "replaced": [*_entries(options.get("replaced", [])), f"{key}={value}"]}


def series_name(series: Iterable[str], tail: str) -> str:
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
