"""Logits under grammars: what a grammar forbids after a node of a draft has no probability there.

The target's are masked in `verification.py`, those of draft models where they draft: before
anything is made of them, so that every rule of acceptance is given distributions of allowed tokens,
and the draft's are those that it drew from.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specbench_kit.decoding.constraint import Allowed
from specbench_kit.models.executors.base import Forward


def masked(forward: Forward, allowed: Sequence[Sequence[Allowed]]) -> Forward:
    """Return the forward with only what is `allowed` after each kept token of each row, if
    anything is forbidden.
    """
    if all(after is None for row in allowed for after in row):
        return forward
    return MaskedForward(forward, allowed)


def mask_logits(logits: Tensor, allowed: Sequence[Allowed], fill: float = -torch.inf) -> Tensor:
    """Return logits [rows, vocabulary] in which what is not allowed is `fill`.

    A row of a model that knows none of the allowed tokens stays as it is: whatever it drafts is
    rejected.
    """
    rows, vocabulary = logits.shape
    table = np.ones((rows, vocabulary), np.bool_)
    for row, after in enumerate(allowed):
        if after is not None:
            table[row, : len(after)] = after[:vocabulary]
            table[row, len(after) :] = False
    keeps = torch.from_numpy(table).to(logits.device)
    drafts_nothing = ~(keeps & (logits > -torch.inf)).any(-1, keepdim=True)
    return logits.masked_fill(~(keeps | drafts_nothing), fill)


class MaskedForward(Forward):
    """A forward whose logits are minus infinity for tokens that a grammar forbids."""

    def __init__(self, unmasked: Forward, allowed: Sequence[Sequence[Allowed]]) -> None:
        super().__init__((), padding=unmasked.padding)
        self.unmasked = unmasked
        self._allowed = allowed

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        return [
            mask_logits(self.unmasked[row], allowed) for row, allowed in enumerate(self._allowed)
        ]

    @cached_property
    def hidden(self) -> dict[int, Tensor]:
        return self.unmasked.hidden

    def states(self, row: int, layers: Sequence[int]) -> Tensor:
        return self.unmasked.states(row, layers)

    def is_nan(self) -> bool:
        return self.unmasked.is_nan()
