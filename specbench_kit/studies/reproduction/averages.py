"""Numbers of several draws of one experiment, as one."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any


def averaged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every number of objects of one shape as `{"mean": ...}`; what is none in one of them is left out."""
    columns = {name: [one[name] for one in found] for name in found[0]}
    return {
        name: averaged(values) if isinstance(values[0], Mapping) else {"mean": fmean(values)}
        for name, values in columns.items()
        if isinstance(values[0], Mapping) or all(isinstance(one, int | float) for one in values)
    }
