"""Averages over several draws of one experiment."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from specbench_kit.core.typed_json import JsonObject


def averaged(draws: Sequence[JsonObject]) -> dict[str, object]:
    """Return objects of one shape as one object whose numbers are `{"mean": ...}`; omit what is not always a number."""
    columns = {name: [draw[name] for draw in draws] for name in draws[0]}
    return {
        name: averaged(values) if isinstance(values[0], Mapping) else {"mean": fmean(values)}
        for name, values in columns.items()
        if isinstance(values[0], Mapping) or all(isinstance(value, int | float) for value in values)
    }
