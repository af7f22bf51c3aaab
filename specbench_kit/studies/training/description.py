"""Descriptions of the examples: counts, acceptance by feature (WISP Fig. 2), correlations (WISP Fig. 3)."""

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.base import ALL_FEATURES, Examples
from specbench_kit.studies.training.examples import Split, extract

BINS = 10


class CurvePoint(TypedDict):
    """The mean value of a feature in one bin, the share of accepted tokens there, and their number."""

    value: float
    accepted: float
    count: int


class CorrelationMatrix(TypedDict):
    """Correlations by row and column, in the order of `names`; None for a constant column."""

    names: list[str]
    matrix: list[list[float | None]]


def describe_split(split: Split) -> dict[str, dict[str, int]]:
    """Return the numbers of prompts, requests, offsets, examples and accepted tokens of each part."""
    counts = {}
    for name, part in split.parts.items():
        labels = extract(part).labels
        counts[name] = {
            "prompts": len(np.unique(part.conversation)),
            "requests": len(part.first),
            "offsets": len(part),
            "examples": len(labels),
            "accepted": int(labels.sum()),
        }
    return counts


def acceptance_curves(examples: Examples, bins: int = BINS) -> dict[str, list[CurvePoint]]:
    """Return the acceptance by value of each feature, in bins with about the same number of tokens."""
    curves = {}
    for name, values in _columns(examples).items():
        edges = np.unique(np.quantile(values, np.arange(1, bins) / bins))
        bin_of = np.searchsorted(edges, values, side="right")
        curves[name] = [
            CurvePoint(
                value=float(values[inside].mean()),
                accepted=float(examples.labels[inside].mean()),
                count=int(inside.sum()),
            )
            for number in range(len(edges) + 1)
            if (inside := bin_of == number).any()
        ]
    return curves


def correlations(examples: Examples) -> CorrelationMatrix:
    """Return the Pearson correlations of the features and of `accepted` as 0 or 1."""
    columns = {**_columns(examples), "accepted": examples.labels}
    with np.errstate(divide="ignore", invalid="ignore"):
        matrix = np.atleast_2d(np.corrcoef([np.asarray(values, np.float64) for values in columns.values()]))
    return {
        "names": list(columns),
        "matrix": [[float(cell) if np.isfinite(cell) else None for cell in row] for row in matrix],
    }


def _columns(examples: Examples) -> dict[str, NDArray[Any]]:
    return dict(zip(ALL_FEATURES, examples.select(ALL_FEATURES).features.T, strict=True))
