"""What the examples look like: counts, acceptance by feature (WISP Fig. 2), correlations (Fig. 3)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.base import ALL_FEATURES, Examples
from specbench_kit.studies.training.examples import Split, extract

Fields = dict[str, Any]
BINS = 10


def describe_split(split: Split) -> dict[str, Fields]:
    """Prompts, requests, offsets, examples and accepted tokens of each part."""
    return {
        name: {
            "prompts": len(np.unique(part.conversation)),
            "requests": len(part.first),
            "offsets": len(part),
            "examples": len(labels := extract(part).labels),
            "accepted": int(labels.sum()),
        }
        for name, part in split.parts.items()
    }


def acceptance_curves(examples: Examples, bins: int = BINS) -> dict[str, list[Fields]]:
    """Per feature, in bins of about equal count: mean value, share of accepted tokens, count."""
    return {name: _curve(values, examples.labels, bins) for name, values in _columns(examples).items()}


def correlations(examples: Examples) -> Fields:
    """Pearson correlations of the features and of `accepted` as 0 or 1; None for a constant."""
    columns = {**_columns(examples), "accepted": examples.labels}
    with np.errstate(divide="ignore", invalid="ignore"):
        matrix = np.atleast_2d(np.corrcoef([np.asarray(values, np.float64) for values in columns.values()]))
    return {
        "names": list(columns),
        "matrix": [[float(cell) if np.isfinite(cell) else None for cell in row] for row in matrix],
    }


def _columns(examples: Examples) -> dict[str, NDArray[Any]]:
    return dict(zip(ALL_FEATURES, examples.select(ALL_FEATURES).features.T, strict=True))


def _curve(values: NDArray[Any], labels: NDArray[np.bool_], bins: int) -> list[Fields]:
    edges = np.unique(np.quantile(values, np.arange(1, bins) / bins))
    place = np.searchsorted(edges, values, side="right")
    return [
        {"value": float(values[here].mean()), "accepted": float(labels[here].mean()), "count": int(here.sum())}
        for number in range(len(edges) + 1)
        if (here := place == number).any()
    ]
