"""What the draft model said where a token was drawn: by a forward of it, or by a recorded trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.decoding.candidates import Candidate, likeliest
from specbench_kit.decoding.features import features_of_row, features_of_rows
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.executors.base import Forward


@dataclass(frozen=True, slots=True)
class DistributionStats:
    """What the draft model said before a token was drawn; probabilities after the logits processors.

    `confidence` is the largest probability, `entropy` in nats, `margin` the lead of the most likely token over
    the second, `logit_std` the standard deviation of the raw logits.
    """

    confidence: float
    entropy: float
    margin: float
    logit_std: float


@dataclass(frozen=True, slots=True)
class NodeStats(DistributionStats):
    """The same with the `probability` of the token that was drafted."""

    probability: float


class TokenScorer(Protocol):
    """Scores drafted tokens by their statistics and their place in the draft, 1 for the first."""

    def score(self, stats: DistributionStats, place: int) -> float:
        """Of one token."""

    def score_chain(self, table: NDArray[Any]) -> list[float]:
        """Of all tokens of a chain [tokens, 5], as `NodeStats` has them."""


class Distributions(Protocol):
    """Where nodes get their statistics from: a draft forward, or a recorded trace."""

    @property
    def sampled(self) -> bool:
        """Whether its tokens were drawn at random from it; else they follow from it, as the most likely ones do."""

    def stats(self, row: int, token: int) -> NodeStats:
        """Statistics of drawing `token` from distribution `row`."""

    def probability(self, row: int, token: int) -> float:
        """Probability of `token` in distribution `row`."""

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        """What a judge says of `token`, drawn from distribution `row` at that place of its draft."""


@runtime_checkable
class FullDistributions(Protocol):
    """Distributions that tokens were drawn from at random, known in full."""

    @property
    def probabilities(self) -> Tensor:
        """[rows, vocabulary]."""


class DraftForward:
    """The distributions [rows, vocabulary] of one batched draft forward; nothing is computed before it is asked for.

    `likeliest` are the rows' most likely tokens, where they are known.
    """

    def __init__(
        self, forward: Forward, sampler: Sampler, sampled: bool = False, likeliest: Sequence[int] | None = None
    ) -> None:
        self.forward, self.sampled = forward, sampled
        self._sampler, self._likeliest = sampler, likeliest
        self._cuts, self._temperature = sampler.cuts, sampler.temperature or 1.0
        self._described = forward.statistics is not None and not self._cuts

    @cached_property
    def logits(self) -> Tensor:
        return self.forward.logits

    @cached_property
    def probabilities(self) -> Tensor:
        return self._sampler.probabilities(self.logits)

    def probability(self, row: int, token: int) -> float:
        if self._described and self._likeliest and token == self._likeliest[row]:  # spares the softmax
            return self._features[row][0]
        return float(self.probabilities[row, token])

    def stats(self, row: int, token: int) -> NodeStats:
        confidence, entropy, margin, logit_std = self._features[row]
        return NodeStats(confidence, entropy, margin, logit_std, self.probability(row, token))

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        return judge.score(self.stats(row, token), place)

    def likeliest(
        self, rows: Sequence[int], bases: Sequence[float], branch: int, count: int, floor: float = -inf
    ) -> list[Candidate]:
        """Of the `branch` likeliest tokens of each row, the `count` that score highest above `floor`, best first.

        A token's score is its row's base plus the logarithm of its probability; its row is counted among `rows`.
        """
        if self.forward.candidates is None or self._cuts:
            found = likeliest(self.probabilities[rows], bases, branch, count)
            return [candidate for candidate in found if candidate[0] > floor]
        return self.forward.candidates(self._temperature, rows, bases, branch, count, floor)

    def table(self, tokens: Sequence[int]) -> Tensor:
        """`NodeStats` of drawing one token from each row, as [rows, 5]."""
        chosen = torch.tensor(tokens, device=self.logits.device)[:, None]
        features = torch.tensor(self._features, device=self.logits.device)
        return torch.cat((features, self.probabilities.gather(1, chosen)), dim=1)

    @cached_property
    def _features(self) -> list[list[float]]:
        """Confidence, entropy, margin and logit_std of every row."""
        if self._described and self.forward.statistics is not None:
            return self.forward.statistics(self._temperature)
        logits = self.logits.float()
        if logits.is_cpu:
            rows = zip(logits.numpy(), self.probabilities.numpy(), strict=True)
            return [features_of_row(*row, self._temperature) for row in rows]
        return features_of_rows(logits, self.probabilities)
