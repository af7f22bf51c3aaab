"""The distributions that draft tokens come from: of a forward of the draft model, or of a recorded trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.decoding.candidates import Candidate, likeliest
from specbench_kit.decoding.features import features_of_row, features_of_rows
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.executors.pending import AnyToken


@dataclass(frozen=True, slots=True)
class DistributionStats:
    """Statistics of a draft distribution before a token is drawn from it, after the logits processors.

    `confidence` is the largest probability, `entropy` in nats, `margin` the lead of the most likely token over
    the second, `logit_std` the standard deviation of the raw logits.
    """

    confidence: float
    entropy: float
    margin: float
    logit_std: float


@dataclass(frozen=True, slots=True)
class NodeStats(DistributionStats):
    """The statistics of a distribution, with the `probability` of the token that was drafted from it."""

    probability: float


class TokenScorer(Protocol):
    """Scores drafted tokens by their statistics and their depth in the draft, which is 1 for the first."""

    def score(self, stats: DistributionStats, depth: int) -> float:
        """Return the score of one token."""

    def score_chain(self, table: NDArray[np.floating]) -> list[float]:
        """Return the scores of all tokens of a chain; `table` is [tokens, 5] in the order of `NodeStats`."""


class Distributions(Protocol):
    """The source of nodes' statistics: a draft forward, or a recorded trace."""

    @property
    def sampled(self) -> bool:
        """True if tokens were drawn at random; false if they follow from the distribution, as the likeliest do."""

    def stats(self, row: int, token: int) -> NodeStats:
        """Return the statistics of drawing `token` from distribution `row`."""

    def probability(self, row: int, token: int) -> float:
        """Return the probability of `token` in distribution `row`."""

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        """Return the scorer's score of `token`, drawn from distribution `row` at that depth of its draft."""


class ProbabilityRows(Protocol):
    """Probabilities by row; a tensor [rows, vocabulary] is one kind."""

    def __getitem__(self, row: int, /) -> Tensor:
        """Return one row's distribution [vocabulary]."""


@runtime_checkable
class FullDistributions(Protocol):
    """Distributions that are known in full, as the residual rule needs them."""

    @property
    def probabilities(self) -> ProbabilityRows:
        """The distributions by row."""


class DraftForward:
    """The distributions [rows, vocabulary] of one batched draft forward; everything is computed on first use.

    `likeliest` holds the rows' likeliest tokens, if they are known already.
    """

    def __init__(
        self, forward: Forward, sampler: Sampler, sampled: bool = False, likeliest: Sequence[AnyToken] | None = None
    ) -> None:
        self.forward, self.sampled = forward, sampled
        self._sampler, self._likeliest = sampler, likeliest
        self._cuts, self._temperature = sampler.cuts, sampler.temperature or 1.0
        # The executor's statistics are of the distribution before top-k and top-p.
        self._described = forward.statistics is not None and not self._cuts

    @cached_property
    def logits(self) -> Tensor:
        return self.forward.logits

    @cached_property
    def probabilities(self) -> Tensor:
        return self._sampler.probabilities(self.logits)

    @property
    def greedy(self) -> bool:
        """True if decoding is greedy, so that no token is drawn at random."""
        return self._sampler.greedy

    def as_drawn(self) -> "DraftForward":
        """Return the same distributions as the source of tokens that the caller draws from them at random."""
        drawn = DraftForward(self.forward, self._sampler, sampled=True)
        drawn.probabilities = self.probabilities
        return drawn

    def probability(self, row: int, token: int) -> float:
        if self._described and self._likeliest and token == int(self._likeliest[row]):  # saves the softmax
            return self._features[row][0]
        return float(self.probabilities[row, token])

    def stats(self, row: int, token: int) -> NodeStats:
        confidence, entropy, margin, logit_std = self._features[row]
        return NodeStats(confidence, entropy, margin, logit_std, self.probability(row, token))

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        return scorer.score(self.stats(row, token), depth)

    def likeliest(
        self, rows: Sequence[int], bases: Sequence[float], branch: int, count: int, floor: float = -inf
    ) -> list[Candidate]:
        """Return the `count` highest-scoring tokens among the `branch` likeliest of each row, best first.

        A token's score is its row's base plus the logarithm of its probability, and must exceed `floor`; the row of a
        candidate is an index into `rows`.
        """
        if self.forward.candidates is None or self._cuts or branch > self.forward.most_candidates:
            candidates = likeliest(self.probabilities[rows], bases, branch, count)
            return [candidate for candidate in candidates if candidate[0] > floor]
        return self.forward.candidates(self._temperature, rows, bases, branch, count, floor)

    def top_tokens(self, count: int) -> list[list[int]]:
        """Return the `count` likeliest tokens of every row, best first."""
        if self._cuts:
            tokens: list[list[int]] = self.probabilities.topk(min(count, self.probabilities.shape[-1])).indices.tolist()
            return tokens
        return self.forward.top_tokens(count)

    def table(self, tokens: Sequence[int]) -> Tensor:
        """Return the `NodeStats` of drawing one token from each row, as [rows, 5]."""
        chosen = torch.tensor(tokens, device=self.logits.device)[:, None]
        features = torch.tensor(self._features, device=self.logits.device)
        return torch.cat((features, self.probabilities.gather(1, chosen)), dim=1)

    @cached_property
    def _features(self) -> list[list[float]]:
        """The confidence, entropy, margin and logit_std of every row."""
        if self._described and self.forward.statistics is not None:
            return self.forward.statistics(self._temperature)
        logits = self.logits.float()
        if logits.is_cpu:
            rows = zip(logits.numpy(), self.probabilities.numpy(), strict=True)
            return [features_of_row(*row, self._temperature) for row in rows]
        return features_of_rows(logits, self.probabilities)
