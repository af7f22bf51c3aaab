"""How a token follows from logits: the likeliest one, or drawn by a number of the request's own random stream."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specbench_kit.decoding.sampling import RequestRandom, Sampler


class TokenChoice(Protocol):
    """The rule that chooses one request's tokens. Scores [..., vocabulary] decide, and rounding moves them."""

    def scores(self, logits: Tensor) -> Tensor:
        """Return the scores of logits."""

    def token(self, scores: Tensor, position: int) -> int:
        """Return the token that is chosen at a position of the output."""

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        """Return the distance between the scores of two tokens."""

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Return True if no third token could be chosen before one of these two."""

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        """Return how far the scores would have to move for `token` to be chosen; 0 if it is chosen."""


class GreedyChoice:
    """Greedy decoding: scores are logits."""

    def scores(self, logits: Tensor) -> Tensor:
        return logits.float()

    def token(self, scores: Tensor, position: int) -> int:
        return int(scores.argmax())

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        return float((scores[token] - scores[other]).abs())

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Return True if at most one token has a higher logit than the lower one of the two."""
        lower = torch.minimum(scores[token], scores[other])
        return int((scores > lower).sum()) <= 1

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        return float(scores.max() - scores[token])


@dataclass
class SampledChoice:
    """Sampling by inversion, as plain decoding does with the same seed: scores are cumulative probabilities."""

    sampler: Sampler
    random: RequestRandom
    _numbers: list[float] = field(default_factory=list)

    def scores(self, logits: Tensor) -> Tensor:
        cumulative = self.sampler.probabilities(logits).double().cumsum(-1)
        return cumulative / cumulative[..., -1:]

    def token(self, scores: Tensor, position: int) -> int:
        return int(torch.searchsorted(scores, self._number(position), right=True))

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        """Return the probability of the tokens between the two, which rounding would have to pass over."""
        low, high = sorted((token, other))
        return float(scores[high - 1] - scores[low])

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Return True: tokens between the two have a probability, which `margin` counts already."""
        return True

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        number = self._number(position)
        below = float(scores[token - 1]) if token else 0.0
        return max(below - number, number - float(scores[token]), 0.0)

    def _number(self, position: int) -> float:
        # The stream can only be read in order, so the numbers of earlier positions are kept.
        while len(self._numbers) <= position:
            self._numbers.append(self.random.uniform("target"))
        return self._numbers[position]


def choice_of(sampler: Sampler, seed: int, request_id: str) -> TokenChoice:
    """Return the rule by which plain decoding chooses a request's tokens."""
    return GreedyChoice() if sampler.greedy else SampledChoice(sampler, RequestRandom(seed, request_id))
