"""Turns received drafts into token trees: every number of a device is checked before it comes near
the target.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf, isfinite

import torch
from torch import Tensor

from specbench_kit.decoding.distributions import NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.wire import Refusal, Status

MOST_ENDS = 256
"""Token ids that may end a response."""
SUM_TOLERANCE = 1e-3
"""How far the sum of a distribution, which was sent as float32, may be from 1."""


class ReceivedDistributions:
    """The draft distributions that a device sent with sampled tokens; a greedy draft has none.

    Token i has `counts[i]` entries; the probabilities that were not sent are zero.
    """

    def __init__(self, draft: messages.Draft, vocabulary: int) -> None:
        self.sampled = bool(draft.counts)
        self._draft = draft
        self._vocabulary = vocabulary
        self._ends = list(accumulate(draft.counts))

    @property
    def probabilities(self) -> "ReceivedDistributions":
        """The distributions by row."""
        return self

    def __getitem__(self, row: int) -> Tensor:
        """Return one token's distribution [vocabulary].

        It is made when it is needed: those of all tokens would take a thousand times the bytes that
        were sent.
        """
        end = self._ends[row]
        entries = slice(end - self._draft.counts[row], end)
        dense = torch.zeros(self._vocabulary)
        dense[torch.tensor(list(self._draft.ids[entries]))] = torch.tensor(
            list(self._draft.probabilities[entries])
        )
        return dense

    def probability(self, row: int, token: int) -> float:
        return float(self[row][token]) if self.sampled else 1.0

    def stats(self, row: int, token: int) -> NodeStats:
        raise NotImplementedError("devices do not send the statistics of their draft models")

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        raise NotImplementedError("devices do not send the statistics of their draft models")


def read_draft(
    draft: messages.Draft, session: Session, sampler: Sampler, limits: ServerLimits, vocabulary: int
) -> Draft:
    """Return the token tree of a received draft; raise Refusal with a status that names the
    fault.
    """
    require_draft(draft, sampler, limits, vocabulary)
    return Draft(session, draft_tree(draft, session.tokens[-1], vocabulary))


def require_draft(
    draft: messages.Draft, sampler: Sampler, limits: ServerLimits, vocabulary: int
) -> None:
    """Raise Refusal with a status that names the fault if a received draft has one."""
    count = len(draft.tokens)
    if count > limits.nodes:
        raise Refusal(
            Status.TOO_MANY_NODES, f"{count} tokens in a draft; this server takes {limits.nodes}"
        )
    if draft.base + count > limits.context:
        raise Refusal(
            Status.CONTEXT_FULL,
            f"{draft.base} tokens and a draft of {count}; this server holds {limits.context}",
        )
    require_tokens(draft.tokens, vocabulary)
    if draft.parents and len(draft.parents) != count:
        raise Refusal(Status.BROKEN_TREE, f"{len(draft.parents)} parents for {count} tokens")
    parents = list(draft.parents) or range(count)
    for node, parent in enumerate(parents, 1):
        # A parent that comes before its children rules out cycles and unknown nodes at once.
        if parent >= node:
            raise Refusal(
                Status.BROKEN_TREE,
                f"node {node} below node {parent}: parents come before their children",
            )
    if draft.counts:
        _require_distributions(draft, parents, sampler, limits, vocabulary)


def draft_tree(draft: messages.Draft, root: int, vocabulary: int) -> TokenTree:
    """Return the token tree of a sound draft below a text's last token."""
    tree = TokenTree(root)
    source = ReceivedDistributions(draft, vocabulary)
    parents = list(draft.parents) or range(len(draft.tokens))
    for row, (token, parent) in enumerate(zip(draft.tokens, parents, strict=True)):
        tree.add(token, parent, source, row)
    return tree


def require_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Raise Refusal if a token id is outside the target's vocabulary."""
    if tokens and max(tokens) >= vocabulary:
        raise Refusal(
            Status.TOKEN_OUTSIDE_VOCABULARY,
            f"token {max(tokens)}; this server's vocabulary has {vocabulary}",
        )


def require_ends(ends: Sequence[int], vocabulary: int) -> None:
    """Raise Refusal unless the tokens that end a response are few, and of the vocabulary: sessions
    hold them.
    """
    if len(ends) > MOST_ENDS:
        raise Refusal(
            Status.MALFORMED_FRAME,
            f"{len(ends)} tokens that end a response; at most {MOST_ENDS} can",
        )
    require_tokens(ends, vocabulary)


def require_times(draft: messages.Draft) -> None:
    """Raise Refusal if a deadline is negative, infinite or NaN, which no scheduler could put in
    order.
    """
    if not all(0 <= time_ms < inf for time_ms in (draft.round_ms, draft.remaining_ms)):
        raise Refusal(
            Status.BROKEN_DEADLINE, f"{draft.round_ms} and {draft.remaining_ms} ms; send 0 or more"
        )


def _require_distributions(
    draft: messages.Draft,
    parents: Sequence[int],
    sampler: Sampler,
    limits: ServerLimits,
    vocabulary: int,
) -> None:
    """Raise Refusal unless the tokens are a chain and each can have been drawn from the
    distribution sent with it.
    """
    fault = ""
    if (
        len(draft.counts) != len(draft.tokens)
        or len(draft.ids) > len(draft.tokens) * limits.candidates
    ):
        fault = f"{len(draft.counts)} distributions with {len(draft.ids)} entries for {len(draft.tokens)} tokens"
        raise Refusal(Status.BROKEN_DISTRIBUTION, fault)
    counts = list(draft.counts)
    ids = list(draft.ids)
    probabilities = list(draft.probabilities)
    if sampler.greedy:
        fault = "a greedy session takes no distributions"
    elif list(parents) != list(range(len(parents))):
        fault = "sampled tokens must be a chain"
    elif not sum(counts) == len(ids) == len(probabilities):
        fault = (
            "each token needs one distribution, and each of its entries a token and a probability"
        )
    elif max(counts) > limits.candidates:
        fault = f"a distribution of {max(counts)} entries; this server takes {limits.candidates}"
    elif not all(isfinite(probability) and probability >= 0 for probability in probabilities):
        fault = "probabilities are finite numbers from 0 on"
    if fault:
        raise Refusal(Status.BROKEN_DISTRIBUTION, fault)
    require_tokens(ids, vocabulary)
    for row, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
        entries = dict(zip(ids[end - count : end], probabilities[end - count : end], strict=True))
        if len(entries) != count or abs(sum(entries.values()) - 1) > SUM_TOLERANCE:
            fault = (
                f"the distribution of token {row + 1} does not add up to 1, or names a token twice"
            )
        elif not entries.get(draft.tokens[row]):
            fault = f"token {row + 1} has no probability in its distribution"
        if fault:
            raise Refusal(Status.BROKEN_DISTRIBUTION, fault)
