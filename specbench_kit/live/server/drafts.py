"""From frames to trees: every number that a device sends is checked before it comes near the target."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from specbench_kit.decoding.distributions import NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.limits import ServerLimits
from specbench_kit.live.wire import Status

SUM_ERROR = 1e-3
"""By which the probabilities of a distribution may miss 1: they are float32."""


class ReceivedDistributions:
    """Where the nodes of a draft that came over the wire are from: nothing is known of them, or their distributions.

    `counts[i]` entries belong to token i.
    """

    def __init__(self, frame: Any, vocabulary: int) -> None:
        self.sampled = bool(frame.counts)
        self._frame, self._vocabulary = frame, vocabulary

    @cached_property
    def probabilities(self) -> Tensor:
        """[tokens, vocabulary], zero where nothing was sent."""
        frame = self._frame
        rows = torch.repeat_interleave(torch.tensor(list(frame.counts)))
        dense = torch.zeros(len(frame.counts), self._vocabulary)
        dense[rows, torch.tensor(list(frame.ids))] = torch.tensor(list(frame.probabilities))
        return dense

    def probability(self, row: int, token: int) -> float:
        return float(self.probabilities[row, token]) if self.sampled else 1.0

    def stats(self, row: int, token: int) -> NodeStats:
        raise NotImplementedError("a server decides nothing by what a draft model said")

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        raise NotImplementedError("a server decides nothing by what a draft model said")


def read_draft(frame: Any, session: Session, sampler: Sampler, bounds: ServerLimits, vocabulary: int) -> Draft:
    """The tree that a frame holds; what is wrong with it is a `Refusal`."""
    count = len(frame.tokens)
    if count > bounds.nodes:
        raise Refusal(Status.TOO_MANY_NODES, f"{count} tokens in a draft; this server takes {bounds.nodes}")
    if len(session.tokens) + count > bounds.context:
        raise Refusal(
            Status.CONTEXT_FULL,
            f"{len(session.tokens)} tokens and a draft of {count}; this server holds {bounds.context}",
        )
    require_tokens(frame.tokens, vocabulary)
    parents = list(frame.parents) or range(count)
    _require_tree(parents, count)
    if frame.counts:
        _require_distributions(frame, parents, sampler, bounds, vocabulary)
    tree = TokenTree(session.tokens[-1])
    source = ReceivedDistributions(frame, vocabulary)
    for row, (token, parent) in enumerate(zip(frame.tokens, parents, strict=True)):
        tree.add(token, parent, source, row)
    return Draft(session, tree)


def require_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Refuse ids that no model here knows."""
    if tokens and max(tokens) >= vocabulary:
        raise Refusal(
            Status.TOKEN_OUTSIDE_VOCABULARY, f"token {max(tokens)}; this server's vocabulary has {vocabulary}"
        )


def require_times(frame: Any) -> None:
    """Refuse times that no scheduler can put in order."""
    if not all(0 <= time_ms < inf for time_ms in (frame.round_ms, frame.remaining_ms)):
        raise Refusal(Status.BROKEN_DEADLINE, f"{frame.round_ms} and {frame.remaining_ms} ms; 0 or more are left")


def _require_tree(parents: Sequence[int], count: int) -> None:
    """Every node after its parent: so there is no cycle."""
    if len(parents) != count:
        raise Refusal(Status.BROKEN_TREE, f"{len(parents)} parents for {count} tokens")
    for node, parent in enumerate(parents, 1):
        if parent >= node:
            raise Refusal(Status.BROKEN_TREE, f"node {node} below node {parent}: parents come before their children")


def _require_distributions(
    frame: Any, parents: Sequence[int], sampler: Sampler, bounds: ServerLimits, vocabulary: int
) -> None:
    def refuse(reason: str) -> Refusal:
        return Refusal(Status.BROKEN_DISTRIBUTION, reason)

    counts, ids, chances = list(frame.counts), list(frame.ids), list(frame.probabilities)
    if sampler.greedy:
        raise refuse("a greedy session takes no distributions")
    if list(parents) != list(range(len(parents))):
        raise refuse("tokens drawn at random have to be a chain")
    if len(counts) != len(frame.tokens) or not sum(counts) == len(ids) == len(chances):
        raise refuse("each token needs one distribution, and each of its entries a token and a probability")
    if max(counts) > bounds.candidates:
        raise refuse(f"a distribution of {max(counts)} entries; this server takes {bounds.candidates}")
    require_tokens(ids, vocabulary)
    if not all(isfinite(chance) and chance >= 0 for chance in chances):
        raise refuse("a probability that is none")
    for row, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
        found = dict(zip(ids[end - count : end], chances[end - count : end], strict=True))
        if len(found) != count or abs(sum(found.values()) - 1) > SUM_ERROR:
            raise refuse(f"the distribution of token {row + 1} does not add up to 1, or names a token twice")
        if not found.get(frame.tokens[row]):
            raise refuse(f"token {row + 1} cannot have been drawn from its distribution")
