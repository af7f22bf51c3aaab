"""Experiments of any command over a grid of inputs, with the figures derived from their rows."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.papers.experiment import GRID
from specbench_kit.studies.reproduction.averages import over_seeds
from specbench_kit.studies.reproduction.derived import GridRows
from specbench_kit.studies.reproduction.inputs import replace_input
from specbench_kit.studies.reproduction.rows import Rows

ExperimentCommand = Callable[[JsonObject, CountCallback], Rows]


def estimated_rows_of(command: ExperimentCommand, options: JsonObject, report: CountCallback, seeds: int) -> Rows:
    """Return `rows_of` with an estimate over `seeds` seeds, from the option `seed` on, at every number.

    Derived figures are computed seed by seed, since equal seeds have the same workload: a ratio of two systems varies
    less than either of them.
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

    Each axis of `options["over"]` has the `key` of the input that it sets and its `values`: a list, or a table of
    values by the names that they get in the rows.
    """
    command_options = {name: value for name, value in options.items() if name not in GRID}
    points = list(_points(options.get("over", {}), command_options))
    rows: Rows = []
    for done, (names, point_options) in enumerate(points):
        # A single run reports its own progress; a grid reports how many of its runs are done.
        progress = report if len(points) == 1 else lambda _done, _planned: None
        rows += [{**names, **row} for row in command(point_options, progress)]
        if len(points) > 1:
            report(done + 1, len(points))
    # Each kind sees the rows of the kinds before it, so that a ratio may use a mean and a pick may use a ratio.
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


def _points(axes: Mapping[str, JsonObject], options: JsonObject) -> Iterator[tuple[dict[str, object], JsonObject]]:
    """Yield every point of the grid: its value names by axis, and its options."""
    values_by_name = [
        axis["values"] if isinstance(axis["values"], Mapping) else {value: value for value in axis["values"]}
        for axis in axes.values()
    ]
    for names in product(*values_by_name):
        point_options = options
        for axis, values, name in zip(axes.values(), values_by_name, names, strict=True):
            point_options = replace_input(point_options, axis["key"], values[name])
        yield dict(zip(axes, names, strict=True)), point_options
