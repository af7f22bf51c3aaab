"""Labelled examples made of offsets, and their split by prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import FEATURES, Examples
from specbench_kit.studies.training.offsets import Offsets

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
        count = f"{len(prompts)} prompt{'s' if len(prompts) != 1 else ''}"
        raise SkitError(f"the trace holds {count}, which cannot be split: record at least {MIN_PROMPTS}, better 100")
    shuffled = np.random.default_rng(seed).permutation(prompts)
    ends = np.rint(np.cumsum(SHARES) * len(prompts)).astype(int)
    parts = np.split(shuffled, ends[:-1])
    return Split(*(offsets.take(np.isin(offsets.conversation, part)) for part in parts))


def extract(offsets: Offsets, names: Sequence[str] = FEATURES) -> Examples:
    """Return the tokens that the target would examine at every offset: accepted ones, and the first mismatch.

    A token that is drafted from several offsets is one example for each, since as many rounds can reach it.
    """
    rows, columns = offsets.examined()
    return Examples(
        features=offsets.features(names)[rows, columns],
        labels=columns < offsets.matched[rows],
        prompts=offsets.conversation[rows],
        positions=columns + 1,
        names=tuple(names),
    )
