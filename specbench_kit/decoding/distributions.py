"""The distributions that draft tokens come from, their statistics, and the most probable tokens of
many rows at once.

A distribution is one of a forward of the draft model, or of a recorded trace.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log, sqrt
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.decoding.masking import MaskedForward
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.executors.pending import AnyToken

COLUMNS = 128
"""The vocabulary is searched as a table of this many columns, of which only the largest entries are
looked at first.
"""

Candidate = tuple[float, int, int]
"""Score, row and token."""


def likeliest(
    probabilities: Tensor, bases: Sequence[float], branch: int, count: int
) -> list[Candidate]:
    """Return the `count` highest-scoring tokens among the `branch` likeliest of each row, best
    first.

    `probabilities` is [rows, vocabulary]. A token's score is its row's base plus the logarithm of its probability.
    """
    branch = min(branch, probabilities.shape[-1])
    count = min(count, branch * len(bases))
    return (_by_bound if probabilities.is_cpu else _by_rows)(probabilities, bases, branch, count)


def _by_rows(
    probabilities: Tensor, bases: Sequence[float], branch: int, count: int
) -> list[Candidate]:
    """Sort every row as far as needed, on the device."""
    best = probabilities.topk(branch)
    scores = best.values.log() + best.values.new_tensor(bases)[:, None]
    values, indices = scores.flatten().topk(count)
    tokens = best.indices.flatten()[indices]
    packed = torch.stack((values.double(), (indices // branch).double(), tokens.double()), -1)
    # The host waits for all of it at once; a double holds each of the numbers exactly.
    return [(score, int(row), int(token)) for score, row, token in packed.tolist()]


def _by_bound(
    probabilities: Tensor, bases: Sequence[float], branch: int, count: int
) -> list[Candidate]:
    """Find a score that the last of the best reaches for certain, and sort only the entries that
    reach it too.

    On a CPU, sorting rows costs several times a look at each entry.
    """
    rows, vocabulary = probabilities.shape
    columns = min(max(COLUMNS, branch), vocabulary)
    table = probabilities.numpy()
    if vocabulary % columns:
        table = np.pad(table, ((0, 0), (0, -vocabulary % columns)))
    table = table.reshape(rows, -1, columns)
    weights = np.exp(np.asarray(bases)).astype(np.float32)[:, None]
    largest = torch.from_numpy(table).amax(1).numpy()  # three times as fast as numpy's
    maxima = largest * weights
    # Column maxima are tokens of their own, so the best `count` of all cannot score below the best
    # `count` of these, of which no more than `branch` may be of one row.
    bound = np.partition(np.partition(maxima, -branch)[:, -branch:], -count, axis=None)[-count]
    # Under a grammar most tokens have no probability, and the bound may be 0: they are no candidates.
    row, column = np.nonzero((maxima >= bound) & (largest > 0))
    entries = table[row, :, column]
    entry, line = np.nonzero((entries * weights[row] >= bound) & (entries > 0))
    origin = row[entry]
    token = line * columns + column[entry]
    scores = torch.from_numpy(entries[entry, line]).log_().add_(torch.tensor(bases)[origin]).numpy()
    order = np.argsort(-scores, kind="stable")
    remaining: defaultdict[int, int] = defaultdict(lambda: branch)
    best = []
    for candidate in zip(
        scores[order].tolist(), origin[order].tolist(), token[order].tolist(), strict=True
    ):
        if remaining[candidate[1]]:
            remaining[candidate[1]] -= 1
            best.append(candidate)
    return best[:count]


@dataclass(frozen=True, slots=True)
class DistributionStats:
    """Statistics of a draft distribution before a token is drawn from it, after the logits
    processors.

    `confidence` is the largest probability, `entropy` in nats, `margin` the lead of the most likely token over
    the second, `logit_std` the standard deviation of the raw logits.
    """

    confidence: float
    entropy: float
    margin: float
    logit_std: float


@dataclass(frozen=True, slots=True)
class NodeStats(DistributionStats):
    """The statistics of a distribution, with the `probability` of the token that was drafted from
    it.
    """

    probability: float


class TokenScorer(Protocol):
    """Scores drafted tokens by their statistics and their depth in the draft, which is 1 for the
    first.
    """

    def score(self, stats: DistributionStats, depth: int) -> float:
        """Return the score of one token."""

    def score_chain(self, table: NDArray[np.floating]) -> list[float]:
        """Return the scores of all tokens of a chain; `table` is [tokens, 5] in the order of
        `NodeStats`.
        """


class Distributions(Protocol):
    """The source of nodes' statistics: a draft forward, or a recorded trace."""

    @property
    def sampled(self) -> bool:
        """True if tokens were drawn at random; false if they follow from the distribution, as the
        likeliest do.
        """

    def stats(self, row: int, token: int) -> NodeStats:
        """Return the statistics of drawing `token` from distribution `row`."""

    def probability(self, row: int, token: int) -> float:
        """Return the probability of `token` in distribution `row`."""

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        """Return the scorer's score of `token`, drawn from distribution `row` at that depth of its
        draft.
        """


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
    """The distributions [rows, vocabulary] of one batched draft forward; everything is computed on
    first use.

    `likeliest` holds the rows' likeliest tokens, if they are known already.
    """

    def __init__(
        self,
        forward: Forward,
        sampler: Sampler,
        sampled: bool = False,
        likeliest: Sequence[AnyToken] | None = None,
    ) -> None:
        self.forward = forward
        self.sampled = sampled
        self._sampler = sampler
        self._likeliest = likeliest
        self._cuts = sampler.cuts or isinstance(forward, MaskedForward)
        self._temperature = sampler.temperature or 1.0
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
        """Return the same distributions as the source of tokens that the caller draws from them at
        random.
        """
        drawn = DraftForward(self.forward, self._sampler, sampled=True)
        drawn.probabilities = self.probabilities
        return drawn

    def probability(self, row: int, token: int) -> float:
        if (
            self._described and self._likeliest and token == int(self._likeliest[row])
        ):  # saves the softmax
            return self._features[row][0]
        return float(self.probabilities[row, token])

    def stats(self, row: int, token: int) -> NodeStats:
        confidence, entropy, margin, logit_std = self._features[row]
        return NodeStats(confidence, entropy, margin, logit_std, self.probability(row, token))

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        return scorer.score(self.stats(row, token), depth)

    def likeliest(
        self,
        rows: Sequence[int],
        bases: Sequence[float],
        branch: int,
        count: int,
        floor: float = -inf,
    ) -> list[Candidate]:
        """Return the `count` highest-scoring tokens among the `branch` likeliest of each row, best
        first.

        A token's score is its row's base plus the logarithm of its probability, and must exceed
        `floor`; the row of a candidate is an index into `rows`.
        """
        if self.forward.candidates is None or self._cuts or branch > self.forward.most_candidates:
            candidates = likeliest(self.probabilities[rows], bases, branch, count)
            return [candidate for candidate in candidates if candidate[0] > floor]
        return self.forward.candidates(self._temperature, rows, bases, branch, count, floor)

    def best_tokens(self) -> list[int]:
        """Return the likeliest token of every row, which a GPU's executor has read with all other
        results.
        """
        return [token for row in self.forward.argmax() for token in row]

    def top_tokens(self, count: int) -> list[list[int]]:
        """Return the `count` likeliest tokens of every row, best first; of a row under a grammar
        only those that it allows.
        """
        if self._cuts:
            best = self.probabilities.topk(min(count, self.probabilities.shape[-1]))
            tokens: list[list[int]] = best.indices.tolist()
            if not isinstance(self.forward, MaskedForward):
                return tokens
            possible = (best.values > 0).sum(-1).tolist()
            return [row[:number] for row, number in zip(tokens, possible, strict=True)]
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
        # Minus infinity times a probability of 0 is no number, and the logits before a grammar's
        # mask are the same wherever there is a probability.
        forward = self.forward
        logits = (forward.unmasked if isinstance(forward, MaskedForward) else forward).logits
        if logits.dtype == torch.float64:
            precise = zip(
                logits.numpy(force=True),
                self.probabilities.double().numpy(force=True),
                strict=True,
            )
            single: list[list[float]] = np.array(
                [features_of_row(*row, self._temperature) for row in precise], np.float32
            ).tolist()
            return single
        logits = logits.float()
        if logits.is_cpu:
            rows = zip(logits.numpy(), self.probabilities.numpy(), strict=True)
            return [features_of_row(*row, self._temperature) for row in rows]
        return features_of_rows(logits, self.probabilities)


def features_of_row(
    logits: NDArray[Any], probabilities: NDArray[Any], temperature: float
) -> list[float]:
    """Return confidence, entropy, margin and logit_std of one row [vocabulary], fast enough for
    every drafted token.

    With p = softmax(logits / temperature), whether or not it was cut to some tokens, the entropy is
    (logit of the best - mean logit under p) / temperature - log p(best), which needs no logarithm
    of every p.
    """
    best = int(probabilities.argmax())
    confidence = float(probabilities[best])
    without_best = probabilities.copy()
    without_best[best] = 0.0
    entropy = float(logits[best] - probabilities.dot(logits)) / temperature - log(confidence)
    centred = logits - logits.mean()
    logit_std = sqrt(float(centred.dot(centred)) / len(logits))
    return [confidence, max(entropy, 0.0), confidence - float(without_best.max()), logit_std]


def features_of_rows(logits: Tensor, probabilities: Tensor) -> list[list[float]]:
    """Return confidence, entropy, margin and logit_std of each row [rows, vocabulary], computed on
    the device.
    """
    top = probabilities.topk(2, dim=-1).values
    entropy = torch.special.entr(probabilities).sum(-1)
    logit_std = logits.std(-1, correction=0)
    features: list[list[float]] = torch.stack(
        (top[:, 0], entropy, top[:, 0] - top[:, 1], logit_std), dim=1
    ).tolist()
    return features
