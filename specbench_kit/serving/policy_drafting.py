"""Drafting on the server by a method's own policy, which sees only how confident the draft model
is.

Imported where a server drafts so, and nowhere else: what policies see is of a library that takes
seconds to load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import DRAFTER
from specbench_kit.methods.base import Method, Policy
from specbench_kit.serving.drafter_costs import costs_of
from specbench_kit.serving.execution import Chunks, Drafted, rows_of
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.traced_drafts import DraftedChain

TokenConfidences = Callable[[Sequence[int]], Sequence[Sequence[float]]]
"""Returns the draft model's confidences in the tokens of each of several clients' drafts."""
TracedChains = Callable[[Sequence[int]], Sequence[DraftedChain]]
"""Returns what a trace holds of each of several clients' drafts."""


class PolicyDrafting:
    """Drafting for the whole batch as a method's policy decides, at most `longest` tokens, then one
    verification.

    Where acceptance is stated, prompts are read by both models, and a batch with a prompt is not
    drafted for. From a trace, a request is drafted for in its first round too, and its draft model
    reads what it has not read: the prompt, or a token behind a draft that was accepted as a whole.
    """

    def __init__(
        self,
        deployment: Deployment,
        method: Method,
        confidences: TokenConfidences,
        longest: int,
        chains: TracedChains | None = None,
    ) -> None:
        policy = method.policy()
        assert isinstance(policy, Policy)
        self._policy = policy
        self._confidences = confidences
        self._longest = longest
        self._chains = chains
        costs = costs_of(method)
        self._draft_s = costs.latencies(deployment)[DRAFTER].seconds
        self._block = costs.tokens_per_forward
        self._verify_s = deployment.verifier.pass_s
        self._decision_s = costs.decides_in_s(deployment)
        self._read: dict[int, _Read] = {}
        """What the draft model has read of each client's text."""

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of the policy's draft forwards and of verifying the tokens that it
        chose.
        """
        rows = rows_of(batch, chunks)
        if self._chains is not None:
            return self._run_traced(batch, rows, chunks, self._chains)
        if chunks or any(not cached for _, cached in rows):
            return self._verify_s(rows) + self._draft_s(rows), 0
        confidences = self._confidences([request.client for request in batch])
        known = [_Chain(chain, self._longest) for chain in confidences]
        chosen, drafter = self._decide(batch, known)
        return drafter.seconds(self._draft_s) + self._decision_s * drafter.drafted + self._verify_s(
            [
                (new + submitted, cached)
                for (new, cached), submitted in zip(rows, chosen, strict=True)
            ]
        ), np.array(chosen)

    def _run_traced(
        self,
        batch: Sequence[WaitingRound],
        rows: Sequence[Row],
        chunks: Chunks,
        chains: TracedChains,
    ) -> tuple[float, Drafted]:
        """Return the same from a trace; what computes only a part of its prompt is not drafted
        for.
        """
        whole = [request for request in batch if request.client not in chunks]
        seconds = 0.0
        known: list[_Chain] = []
        for request, chain in zip(
            whole, chains([request.client for request in whole]), strict=True
        ):
            context = request.cached + request.new
            read = self._read.setdefault(request.client, _Read())
            cached = 0 if chain.begins or not request.cached else read.cached_behind(context)
            if not cached:
                cached = context - 1
                seconds += self._draft_s(((cached, 0),)) if cached else 0.0
            known.append(_TracedChain(chain, self._longest, cached))
        chosen, drafter = self._decide(whole, known)
        for request, draft in zip(whole, drafter.drafts, strict=True):
            self._read[request.client] = _Read(
                request.cached + request.new, draft.tree.last, drafter.cached(draft)
            )
        of_client = dict(zip([request.client for request in whole], chosen, strict=True))
        submitted = [of_client.get(request.client, 0) for request in batch]
        verified = [
            (new + more, cached) for (new, cached), more in zip(rows, submitted, strict=True)
        ]
        seconds += drafter.seconds(self._draft_s) + self._decision_s * drafter.drafted
        return seconds + self._verify_s(verified), np.array(submitted)

    def _decide(
        self, batch: Sequence[WaitingRound], chains: Sequence["_Chain"]
    ) -> tuple[list[int], "_ConfidenceDrafter"]:
        """Return how many tokens the policy submits of each request, and the drafter with what it
        drafted.
        """
        drafter = _ConfidenceDrafter(batch, chains, self._block)
        if batch:
            self._policy.draft(cast("Drafter", drafter))
            return [len(nodes) for nodes in self._policy.choose(drafter.drafts)], drafter
        return [], drafter


@dataclass(frozen=True, slots=True)
class _Read:
    """What the draft model has read of a client's text, of which so many tokens stood there before
    its last round.
    """

    context: int = 0
    drafted: int = 0
    cached: int = 0

    def cached_behind(self, context: int) -> int:
        """Return the tokens in the draft model's KV in a round that begins after `context`
        tokens.
        """
        if not self.drafted:
            return self.cached
        # It never forwarded the last token that it drafted.
        return self.context + min(context - self.context - 1, self.drafted - 1)


class _Chain:
    """A chain whose tokens have nothing but a confidence.

    `cached` counts the tokens of the text in the draft model's KV, where they are known.
    """

    sampled = False

    def __init__(
        self, confidences: Sequence[float], longest: int, cached: int | None = None
    ) -> None:
        self._confidences = confidences
        self.length = longest
        self.room = longest
        self.cached = cached

    def stats(self, row: int, token: int) -> NodeStats:
        raise SkitError(NEEDS_TRACE)

    def probability(self, row: int, token: int) -> float:
        return self._confidences[row]

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        raise SkitError(NEEDS_TRACE)


class _TracedChain(_Chain):
    """A chain with the statistics that a trace holds of its tokens."""

    def __init__(self, chain: DraftedChain, longest: int, cached: int) -> None:
        self._table = chain.statistics
        super().__init__(self._table[:, -1].tolist(), min(longest, len(self._table)), cached)
        self.room = min(longest, chain.room)

    def stats(self, row: int, token: int) -> NodeStats:
        return NodeStats(*self._table[row].tolist())

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        return judge.score_chain(self._table)[row]


class _ConfidenceDrafter:
    """The drafter that a policy sees."""

    def __init__(self, batch: Sequence[WaitingRound], chains: Sequence[_Chain], block: int) -> None:
        self.drafts = []
        self.drafted = 0
        """Tokens of all chains."""
        self._block = block
        for round_ in batch:
            # The policy needs a request's name and the length of its context, nothing else.
            request = SimpleNamespace(id=str(round_.client))
            session = SimpleNamespace(request=request, tokens=range(round_.cached + round_.new))
            self.drafts.append(Draft(cast("Session", session), TokenTree(0)))
        self._forwards: list[list[Row]] = []
        """New and cached tokens of each request, forward by forward."""
        self._chains = {id(draft): chain for draft, chain in zip(self.drafts, chains, strict=True)}

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take."""
        return self._chains[id(draft)].room - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain; return those that had one and had room for it."""
        grown = [
            draft
            for draft in drafts
            if self.room(draft) > 0 and draft.tree.last < self._chains[id(draft)].length
        ]
        self.drafted += len(grown)
        if rows := [self._row(draft) for draft in grown if draft.tree.last % self._block == 0]:
            self._forwards.append(rows)
        for draft in grown:
            position = draft.tree.last
            draft.tree.add(0, position, self._chains[id(draft)], position)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Refuse to draft trees: acceptance rates describe chains."""
        raise SkitError(
            "a simulated server drafts chains from acceptance rates: name the folder of a run instead"
        )

    def seconds(self, draft_s: Callable[[Sequence[Row]], float]) -> float:
        """Return the seconds of all forwards."""
        return sum(map(draft_s, self._forwards))

    def cached(self, draft: Draft) -> int:
        """Return the tokens that were in the draft model's KV before the round, of a chain for
        which this is known.
        """
        return self._chains[id(draft)].cached or 0

    def _row(self, draft: Draft) -> Row:
        """Return the new and the cached tokens of the forward that drafts a chain's next token."""
        cached = self._chains[id(draft)].cached
        if draft.tree.last == 0 and cached is not None:
            return draft.context_length - cached + self._block - 1, cached
        return self._block, draft.context_length - 1 + draft.tree.last


NEEDS_TRACE = (
    "a simulated server knows only the probability of a drafted token, and this method reads more: name a trace as "
    "--acceptance"
)
