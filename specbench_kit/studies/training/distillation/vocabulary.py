"""The tokens that a draft can propose, and its loss against the target's distribution over them."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench_kit.studies.training.distillation.answers import Answer

RUNNERS_UP = 3
RUNNER_UP_WEIGHT = 0.2
"""How many of the target's next best tokens count towards the vocabulary, and how much each
does.
"""
SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
TYPICAL_ACCEPTANCE = 0.6
TYPICAL_LENGTH = 4
"""Acceptance rate with a full vocabulary, and draft length, for which the size is chosen."""


def count_tokens(answers: Iterable[Answer]) -> Counter[int]:
    """Return how often the target chose each token, its next best tokens counted as a part."""
    counts: Counter[int] = Counter()
    weights: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.output)
        weights.update(answer.top_tokens[:, 1 : 1 + RUNNERS_UP].flatten().tolist())
    for token, count in weights.items():
        counts[token] += RUNNER_UP_WEIGHT * count  # type: ignore[assignment]  # a weighted count
    return counts


def choose_size(counts: Counter[int], total: int, width: int, body: int, target: int) -> int:
    """Return the vocabulary size with the best expected speed; `total` keeps every token.

    A larger vocabulary holds more of the tokens that the target chooses, and makes each draft step
    dearer. The cost of a step is its weights, `body` and the output rows of `width`, over those of
    the target.
    """

    def speed(size: int) -> float:
        covered = sum(count for _, count in counts.most_common(size)) / sum(counts.values())
        rate = TYPICAL_ACCEPTANCE * covered
        cost = (body + size * width) / target
        return sum(rate**step for step in range(TYPICAL_LENGTH + 1)) / (1 + TYPICAL_LENGTH * cost)

    return max((*(size for size in SIZES if size < total), total), key=speed)


def choose_tokens(
    counts: Counter[int], size: int, total: int, always: Collection[int] = ()
) -> Tensor:
    """Return the `size` most frequent tokens, with those of `always` among them, in rising
    order.
    """
    ranked = sorted(range(total), key=lambda token: (token not in always, -counts[token], token))
    return torch.tensor(sorted(ranked[: min(size, total)]))


@dataclass(frozen=True, slots=True)
class ReducedTargets:
    """The target's distributions at some positions, in terms of a draft's vocabulary.

    `indices` [positions, kept] are the target's likeliest tokens in the draft's numbering, best first, -1 for tokens
    that it does not have; `shares` are their probabilities, renormalised over those that it has.
    """

    indices: Tensor
    shares: Tensor

    @classmethod
    def of(cls, top_tokens: Tensor, top_logits: Tensor, index_of: Tensor) -> "ReducedTargets":
        """Translate the target's likeliest tokens; `index_of` holds the draft's number of every
        token, or -1.
        """
        indices = index_of[top_tokens]
        logits = top_logits.masked_fill(indices < 0, -torch.inf)
        shares = torch.where((indices >= 0).any(-1, keepdim=True), logits.softmax(-1), 0.0)
        return cls(indices, shares)

    def __getitem__(self, positions: Tensor) -> "ReducedTargets":
        return ReducedTargets(self.indices[positions], self.shares[positions])

    def loss(self, logits: Tensor, hard: float = 0.0) -> Tensor:
        """Return the mean cross-entropy; `hard` is the extra weight of the target's best token."""
        scores = torch.log_softmax(logits.float(), -1).gather(-1, self.indices.clamp(min=0))
        soft = -(self.shares * scores).sum()
        best = -(scores[:, 0] * (self.indices[:, 0] >= 0)).sum()
        return (soft + hard * best) / max(1, len(logits))

    def hits(self, logits: Tensor) -> Tensor:
        """Return for each position whether the draft's best token is the target's."""
        return logits.argmax(-1) == self.indices[:, 0]


def index_of(tokens: Tensor, total: int) -> Tensor:
    """Return the number of every one of `total` tokens among the draft's `tokens`, or -1."""
    table = torch.full((total,), -1)
    table[tokens] = torch.arange(len(tokens))
    return table
