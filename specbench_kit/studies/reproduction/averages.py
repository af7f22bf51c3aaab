"""Averages over several draws or seeds of one experiment, with their 95% intervals; and its rows of
results.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from specbench_kit.papers.figure_row import FigureRow, Figures
from specbench_kit.studies.serving.seeds import estimate

Rows = list[FigureRow]


SHARES = ("_rate", "_share")
"""Ends of the names of figures that lie between 0 and 1."""


def averaged(draws: Sequence[Figures]) -> Figures:
    """Return objects of one shape as one object whose numbers are estimates; omit what is not
    always a number.
    """
    averages: dict[str, Figures] = {}
    for name in draws[0]:
        values = [draw[name] for draw in draws]
        if isinstance(values[0], Mapping):
            averages[name] = averaged(values)
        elif all(isinstance(value, int | float) for value in values):
            averages[name] = structs.asdict(estimate(list(map(float, values))))
    return averages


def over_seeds(rows_by_seed: Sequence[Rows]) -> Rows:
    """Return the rows of several seeds as one row per series and point of the grid, with estimates
    over the seeds.

    A seed without a row, or without a figure of it, is left out of that figure, as one without a
    violation has no share of violations that the batch caused. A single seed's rows are returned as
    they are.
    """
    if len(rows_by_seed) == 1:
        return rows_by_seed[0]
    of_points: dict[object, Rows] = {}
    for row in (row for rows in rows_by_seed for row in rows):
        key = (row.series, frozenset(_point(row).items()))
        of_points.setdefault(key, []).append(row)
    # Several rows of one seed lie at one point: simulated figures and those derived from them.
    return [
        FigureRow(rows[0].series, _point(rows[0]), _joined([row.figures for row in rows], ""))
        for rows in of_points.values()
    ]


def _point(row: FigureRow) -> dict[str, str | float]:
    return {
        name: value for name, value in row.point.items() if isinstance(value, str | int | float)
    }


def _joined(trees: Sequence[Figures], name: str) -> Figures:
    """Return trees of figures as one tree whose numbers are estimates over those trees that have
    them.
    """
    means = [tree["mean"] for tree in trees if isinstance(tree.get("mean"), int | float)]
    if means:
        share = name.endswith(SHARES)
        interval = estimate(list(map(float, means)), 0.0 if share else None, 1.0 if share else None)
        return structs.asdict(interval)
    branches: dict[str, list[Figures]] = {}
    for tree in trees:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                branches.setdefault(key, []).append(value)
    return {key: _joined(values, key) for key, values in branches.items()}
