"""Labelled examples made of offsets: their split by prompt, their counts, and the acceptance by
feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import ALL_FEATURES, FEATURES, Examples
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.wording import (
    CorrelationMatrix,
    CurvePoint,
    PartCounts,
    SplitCounts,
    prompts_in_words,
)

SHARES = (0.6, 0.2, 0.2)
"""Shares of the prompts for training, validation and test."""
MIN_PROMPTS = 5
"""The fewest prompts that can be split in these shares."""


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets of different prompts: to train on, to choose parameters by, and to evaluate on."""

    training: Offsets
    validation: Offsets
    test: Offsets

    @property
    def parts(self) -> dict[str, Offsets]:
        return {"training": self.training, "validation": self.validation, "test": self.test}


def split_by_prompt(offsets: Offsets, seed: int) -> Split:
    """Return a random split by `seed` that keeps all turns of a dialogue together."""
    prompts = np.unique(offsets.conversation)
    if len(prompts) < MIN_PROMPTS:
        raise SkitError(
            f"the trace holds {prompts_in_words(len(prompts))}, which cannot be split: record at least {MIN_PROMPTS}, "
            "better 100"
        )
    shuffled = np.random.default_rng(seed).permutation(prompts)
    ends = np.rint(np.cumsum(SHARES) * len(prompts)).astype(int)
    parts = np.split(shuffled, ends[:-1])
    return Split(*(offsets.take(np.isin(offsets.conversation, part)) for part in parts))


def extract(offsets: Offsets, names: Sequence[str] = FEATURES) -> Examples:
    """Return the tokens that the target would examine at every offset: accepted ones, and the first
    mismatch.

    A token that is drafted from several offsets is one example for each, since as many rounds can
    reach it.
    """
    rows, columns = offsets.examined()
    return Examples(
        features=offsets.features(names)[rows, columns],
        labels=columns < offsets.matched[rows],
        prompts=offsets.conversation[rows],
        positions=columns + 1,
        names=tuple(names),
    )


BINS = 10


def describe_split(split: Split) -> SplitCounts:
    """Return the numbers of prompts, requests, offsets, examples and accepted tokens of each
    part.
    """
    return SplitCounts(*map(_part_counts, (split.training, split.validation, split.test)))


def _part_counts(part: Offsets) -> PartCounts:
    labels = extract(part).labels
    return PartCounts(
        prompts=len(np.unique(part.conversation)),
        requests=len(part.first),
        offsets=len(part),
        examples=len(labels),
        accepted=int(labels.sum()),
    )


def acceptance_curves(examples: Examples, bins: int = BINS) -> dict[str, list[CurvePoint]]:
    """Return the acceptance by value of each feature, in bins with about the same number of
    tokens.
    """
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
        matrix = np.atleast_2d(
            np.corrcoef([np.asarray(values, np.float64) for values in columns.values()])
        )
    return CorrelationMatrix(list(columns), [list(map(_finite, row)) for row in matrix])


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _columns(examples: Examples) -> dict[str, NDArray[Any]]:
    return dict(zip(ALL_FEATURES, examples.select(ALL_FEATURES).features.T, strict=True))
