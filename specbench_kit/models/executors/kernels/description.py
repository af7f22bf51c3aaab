"""What the card says of the distributions after some tokens, so that the host need not read logits."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

NEXT, NAN, OWN = range(3)
"""The first fields of a token: the most likely next token, whether a logit is NaN, and the token
itself.
"""
FIELDS = 3
TOP = 64
"""The most candidates of a distribution that a graph brings to the host."""
STATISTICS = 4
"""Largest probability, entropy, margin, and standard deviation of the logits."""
DETAILS = STATISTICS + 2 * TOP
"""The further fields of a token; the last ones are the log-probabilities of the candidates, then
their tokens.
"""


class Details(NamedTuple):
    """What graphs say of softmax(logits / temperature): nothing at temperature 0, candidates only
    where asked for.
    """

    temperature: float = 0.0
    candidates: bool = False

    def include(self, other: "Details") -> bool:
        """Return whether the other's fields are among these."""
        return self.temperature == other.temperature and self.candidates >= other.candidates


class Description(NamedTuple):
    """The fields [..., FIELDS, or FIELDS + STATISTICS, or FIELDS + DETAILS] of tokens, and the most
    likely next ones [...].
    """

    fields: Tensor
    best: Tensor


class Describe(Protocol):
    """Describes the distributions of logits [..., vocabulary], which follow `tokens` [...]."""

    def __call__(self, logits: Tensor, tokens: Tensor, details: Details) -> Description: ...


def describe(logits: Tensor, tokens: Tensor, details: Details) -> Description:
    """Describe distributions by torch's operations."""
    largest, best = logits.max(-1)  # NaN if any is
    known = torch.stack([result.double() for result in (best, largest.isnan(), tokens)], -1)
    if not details.temperature:
        return Description(known, best)
    return Description(torch.cat((known, details_of(logits, details).double()), -1), best)


def details_of(logits: Tensor, details: Details) -> Tensor:
    """Return the further fields [..., STATISTICS or DETAILS] of logits [..., vocabulary]."""
    logits = logits.float()
    probabilities = (logits / details.temperature).softmax(-1)
    best = probabilities.topk(min(TOP if details.candidates else 2, logits.shape[-1]))
    confidence = best.values[..., 0]
    entropy = torch.special.entr(probabilities).sum(-1)
    margin = confidence - best.values[..., 1]
    fields = torch.stack((confidence, entropy, margin, logits.std(-1, correction=0)), -1)
    if not details.candidates:
        return fields
    return torch.cat((fields.double(), candidates(best.values.log(), best.indices)), -1)


def candidates(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return the fields [..., 2 * TOP] of candidates, of which a small vocabulary has fewer."""
    room = (0, TOP - tokens.shape[-1])
    return torch.cat((pad(scores, room, value=-torch.inf).double(), pad(tokens, room).double()), -1)
