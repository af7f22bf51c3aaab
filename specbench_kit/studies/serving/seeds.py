"""Figures of several seeds as one: their mean with a 95% interval of Student's t."""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

from msgspec import convert, to_builtins

from specbench_kit.core.typed_json import JsonValue, Written
from specbench_kit.metrics.statistics import LEVEL, student
from specbench_kit.serving.figures import Figures, Interval, SeedFigures


def estimate(
    values: Sequence[float], least: float | None = None, most: float | None = None
) -> Interval:
    """Return the mean over seeds with its interval, cut at the bounds `least` and `most` of the
    quantity.
    """
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean)
    half = student(LEVEL, len(values) - 1) * stdev(values) / sqrt(len(values))
    low = mean - half
    high = mean + half
    return Interval(
        mean, low if least is None else max(least, low), high if most is None else min(most, high)
    )


def over_seeds(figures: Sequence[Figures]) -> SeedFigures:
    """Return the figures of several seeds with an interval at every number."""
    return convert(joined(list(map(to_builtins, figures))), SeedFigures)


def joined(trees: Sequence[Written]) -> Written:
    """Return the same tree of figures as each seed's, with the fields of an interval at every
    number.

    A seed without a value for a figure is left out of that figure.
    """
    figures: dict[str, JsonValue] = {}
    for name in trees[0]:
        values = [tree[name] for tree in trees if tree[name] is not None]
        subtrees = [value for value in values if isinstance(value, Mapping)]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if not values:
            figures[name] = None
        elif subtrees:
            figures[name] = joined(subtrees)
        elif isinstance(values[0], bool):
            figures[name] = all(values)
        elif numbers:
            upper = 1.0 if name.endswith("_rate") or name == "utilisation" else None
            figures[name] = to_builtins(estimate(numbers, 0.0, upper))
        else:
            figures[name] = values[0]
    return figures
