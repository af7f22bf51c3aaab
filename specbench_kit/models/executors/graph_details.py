"""What a graph says of a distribution beside its most likely token: statistics and the best candidates."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

TOP = 64
"""The most candidates of a distribution that a graph brings to the host."""
STATISTICS = 4
"""Largest probability, entropy, margin, and standard deviation of the logits."""
DETAILS = STATISTICS + 2 * TOP
"""The fields of a description; the last ones are the log-probabilities of the candidates, then their tokens."""

Fields = np.ndarray[Any, np.dtype[np.float64]]


class Details(NamedTuple):
    """What graphs say of softmax(logits / temperature): nothing at temperature 0, candidates only where asked for."""

    temperature: float = 0.0
    candidates: bool = False

    def include(self, other: "Details") -> bool:
        """Return whether the other's fields are among these."""
        return self.temperature == other.temperature and self.candidates >= other.candidates


def describe(logits: Tensor, details: Details) -> Tensor:
    """Return the fields [..., STATISTICS or DETAILS] of logits [..., vocabulary], computed on their device."""
    logits = logits.float()
    probabilities = (logits / details.temperature).softmax(-1)
    best = probabilities.topk(min(TOP if details.candidates else 2, logits.shape[-1]))
    confidence = best.values[..., 0]
    entropy = torch.special.entr(probabilities).sum(-1)
    margin = confidence - best.values[..., 1]
    fields = torch.stack((confidence, entropy, margin, logits.std(-1, correction=0)), -1)
    if not details.candidates:
        return fields
    room = (0, TOP - best.indices.shape[-1])
    scores = torch.nn.functional.pad(best.values.log(), room, value=-torch.inf)
    tokens = torch.nn.functional.pad(best.indices, room)
    return torch.cat((fields.double(), scores.double(), tokens.double()), -1)


def best_candidates(
    fields: Fields, rows: Sequence[int], bases: Sequence[float], branch: int, count: int, floor: float
) -> list[tuple[float, int, int]]:
    """Return the best candidates as (score, row, token), see `DraftForward.likeliest`."""
    chosen = fields[list(rows)]
    scores = chosen[:, STATISTICS : STATISTICS + branch].astype(np.float32)
    scores += np.asarray(bases, np.float32)[:, None]
    tokens = chosen[:, STATISTICS + TOP : STATISTICS + TOP + branch].astype(int)
    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    best = zip(scores.flat[order].tolist(), (order // branch).tolist(), tokens.flat[order].tolist(), strict=True)
    return [candidate for candidate in best if candidate[0] > floor and candidate[0] > -np.inf]
