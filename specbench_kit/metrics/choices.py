"""How a token follows from logits: the likeliest, or by a number of the request's own stream."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specbench_kit.decoding.sampling import RequestRandom, Sampler


class TokenChoice(Protocol):
    """One request's rule. Scores are what rounding moves and what decides, [..., vocabulary]."""

    def scores(self, logits: Tensor) -> Tensor:
        """Of logits."""

    def token(self, scores: Tensor, position: int) -> int:
        """What is chosen at a position of the output."""

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        """How far two tokens are apart."""

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Whether the choice lies between these two."""

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        """How far the scores would have to move for `token` to be chosen."""


class GreedyChoice:
    """Greedy decoding: scores are logits."""

    def scores(self, logits: Tensor) -> Tensor:
        return logits.float()

    def token(self, scores: Tensor, position: int) -> int:
        return int(scores.argmax())

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        return float((scores[token] - scores[other]).abs())

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Whether no third token has a higher logit than both; of equals any may be second."""
        lower = torch.minimum(scores[token], scores[other])
        return int((scores > lower).sum()) <= 1

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        return float(scores.max() - scores[token])


@dataclass
class SampledChoice:
    """Draws by inversion, as plain decoding with the same seed does: scores are cumulative probabilities."""

    sampler: Sampler
    random: RequestRandom
    _numbers: list[float] = field(default_factory=list)

    def scores(self, logits: Tensor) -> Tensor:
        ladder = self.sampler.probabilities(logits).double().cumsum(-1)
        return ladder / ladder[..., -1:]

    def token(self, scores: Tensor, position: int) -> int:
        return int(torch.searchsorted(scores, self._number(position), right=True))

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        """The probability between the two: that of the tokens between them, which both shapes must pass over."""
        low, high = sorted((token, other))
        return float(scores[high - 1] - scores[low])

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Neighbours have no probability between them, which `margin` says already."""
        return True

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        number = self._number(position)
        below = float(scores[token - 1]) if token else 0.0
        return max(below - number, number - float(scores[token]), 0.0)

    def _number(self, position: int) -> float:
        while len(self._numbers) <= position:
            self._numbers.append(self.random.uniform("target"))
        return self._numbers[position]
