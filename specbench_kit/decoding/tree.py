"""The drafted tokens of one request in one round."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import inf
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.decoding.candidates import Candidate, likeliest
from specbench_kit.decoding.features import features_of_row, features_of_rows
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.errors import PolicyError
from specbench_kit.models.executors.base import Forward


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the draft model said before a token was drawn; probabilities after the logits processors.

    `confidence` is the largest probability, `entropy` in nats, `margin` the lead of the most likely token over
    the second, `logit_std` the standard deviation of the raw logits.
    """

    confidence: float
    entropy: float
    margin: float
    logit_std: float


@dataclass(frozen=True, slots=True)
class NodeStats(Outlook):
    """The same with the `probability` of the token that was drafted."""

    probability: float


class Judge(Protocol):
    """Scores drafted tokens by their statistics and their place in the draft, 1 for the first."""

    def score(self, stats: Outlook, place: int) -> float:
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

    def score(self, row: int, token: int, place: int, judge: Judge) -> float:
        """What a judge says of `token`, drawn from distribution `row` at that place of its draft."""


@runtime_checkable
class Drawn(Protocol):
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

    def score(self, row: int, token: int, place: int, judge: Judge) -> float:
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


class TokenTree:
    """Drafted tokens below the last committed one, which is node 0; parents come before their children."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._depths = [0]
        self._sources: list[tuple[Distributions, int] | None] = [None]
        self.sampled = False
        """Whether any node was drawn at random."""
        self.sent = 0
        """Nodes that there were, the root included, when the draft was sent; newer ones are proactive."""
        self.inherited = 0
        """Nodes from 1 to this one were drafted in the round before."""
        self.known = 0
        """The last node whose token somebody knows: by its probability, or by what was drafted below it."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """Tokens that this round has drafted."""
        return len(self.tokens) - 1 - self.inherited

    @property
    def last(self) -> int:
        """The newest node."""
        return len(self.tokens) - 1

    @property
    def proactive(self) -> int:
        """Nodes that were drafted after the others had been sent."""
        return len(self.tokens) - self.sent

    def add(self, token: int, parent: int, source: Distributions, row: int) -> int:
        """Append a child that came from distribution `row` of `source`; returns its node."""
        node = len(self.tokens)
        if not 0 <= parent < node:
            raise self._no_parent(parent)
        self.sampled = self.sampled or source.sampled
        self.tokens.append(token)
        self.parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._sources.append((source, row))
        return node

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], source: Distributions, rows: Sequence[int]
    ) -> range:
        """Append children of nodes that are there already, all from one source; returns their nodes."""
        first, depths = len(self.tokens), self._depths
        if strange := [parent for parent in parents if not 0 <= parent < first]:
            raise self._no_parent(strange[0])
        self.sampled = self.sampled or source.sampled
        self.tokens += tokens
        self.parents += parents
        depths += [depths[parent] + 1 for parent in parents]
        self._sources += zip(repeat(source), rows)
        return range(first, len(self.tokens))

    def below(self, node: int) -> list[int]:
        """The node and its descendants, parents before children."""
        found = {node}
        for child in range(node + 1, len(self.tokens)):
            if self.parents[child] in found:
                found.add(child)
        return sorted(found)

    def path(self, node: int) -> list[int]:
        """The way down to a node, without the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def rooted_at(self, node: int) -> "TokenTree":
        """The part below a node as a tree of its own; nodes are numbered in the order of `below`."""
        tree = TokenTree(self.tokens[node])
        place = {node: 0}
        for child in self.below(node)[1:]:
            place[child] = tree.add(self.tokens[child], place[self.parents[child]], *self.source(child))
        tree.inherited = tree.last
        return tree

    def depth(self, node: int) -> int:
        """Distance from the root."""
        return self._depths[node]

    def deepest(self, nodes: Iterable[int]) -> int:
        """The largest distance of any of these from the root."""
        return max(map(self._depths.__getitem__, nodes), default=0)

    def source(self, node: int) -> tuple[Distributions, int]:
        """The distribution that a drafted node was drawn from."""
        source = self._sources[node]
        assert source is not None
        return source

    def outlook(self, node: int) -> Outlook:
        """What the draft model said before it drafted a node: what may decide whether the node is verified."""
        source, row = self.source(node)
        self.known = max(self.known, self.parents[node])
        stats = source.stats(row, self.tokens[node])
        return Outlook(stats.confidence, stats.entropy, stats.margin, stats.logit_std)

    def stats(self, node: int) -> NodeStats:
        """Draft statistics of a drafted node."""
        source, row = self.source(node)
        self.known = max(self.known, node)
        return source.stats(row, self.tokens[node])

    def probability(self, node: int) -> float:
        """Draft probability of a drafted node's token."""
        source, row = self.source(node)
        self.known = max(self.known, node)
        return source.probability(row, self.tokens[node])

    def judge(self, node: int, judge: Judge) -> float:
        """What a judge says of a drafted node."""
        source, row = self.source(node)
        self.known = max(self.known, self.parents[node])
        return source.score(row, self.tokens[node], self._depths[node], judge)

    def score(self, node: int) -> float:
        """Cumulative draft probability from the root."""
        product = 1.0
        while node > 0:
            product *= self.probability(node)
            node = self.parents[node]
        return product

    def _no_parent(self, parent: int) -> PolicyError:
        return PolicyError(f"a child was added to node {parent} of a tree whose nodes are 0 to {self.last}")
