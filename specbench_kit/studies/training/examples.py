"""Labelled examples from offsets, and their split by prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import FEATURES, Examples
from specbench_kit.studies.training.offsets import Offsets

SHARES = (0.6, 0.2, 0.2)
"""Of the prompts, for training, validation and test."""
FEWEST = 5
"""Prompts that can be split so."""


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets of different prompts: to train on, to choose by, and to judge on."""

    training: Offsets
    validation: Offsets
    test: Offsets

    @property
    def parts(self) -> dict[str, Offsets]:
        return {"training": self.training, "validation": self.validation, "test": self.test}


def split_by_prompt(offsets: Offsets, seed: int) -> Split:
    """A seeded split that keeps all turns of a dialogue together."""
    prompts = np.unique(offsets.conversation)
    if len(prompts) < FEWEST:
        found = f"{len(prompts)} prompt{'s' if len(prompts) != 1 else ''}"
        raise SkitError(f"the trace holds {found}, which cannot be split: record at least {FEWEST}, better 100")
    shuffled = np.random.default_rng(seed).permutation(prompts)
    ends = np.rint(np.cumsum(SHARES) * len(prompts)).astype(int)
    parts = np.split(shuffled, ends[:-1])
    return Split(*(offsets.take(np.isin(offsets.conversation, part)) for part in parts))


def extract(offsets: Offsets, names: Sequence[str] = FEATURES) -> Examples:
    """Every offset's drafted tokens as the target would judge them: accepted up to the first mismatch, then that.

    A token that drafts from several offsets run into is one example for each, as it is met in as many rounds.
    """
    rows, columns = offsets.met()
    return Examples(
        features=offsets.features(names)[rows, columns],
        labels=columns < offsets.matched[rows],
        prompts=offsets.conversation[rows],
        positions=columns + 1,
        names=tuple(names),
    )
