"""Drafting on the server by a method's own policy, which sees only how confident the draft model is.

Imported where a server drafts so, and nowhere else: what policies see is of a library that takes seconds to load.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import DRAFTER
from specbench_kit.methods.base import Method, Policy
from specbench_kit.serving.drafter_costs import costs_of
from specbench_kit.serving.execution import Chunks, Drafted, rows_of
from specbench_kit.serving.schedulers.waiting import WaitingRound

TokenConfidences = Callable[[Sequence[int]], Sequence[Sequence[float]]]
"""Returns the draft model's confidences in the tokens of each of several clients' drafts."""


class PolicyDrafting:
    """Drafting for the whole batch as a method's policy decides, at most `longest` tokens, then one verification.

    Prompts are read by both models; a batch with a prompt is not drafted for.
    """

    def __init__(self, deployment: Deployment, method: Method, confidences: TokenConfidences, longest: int) -> None:
        policy = method.policy()
        assert isinstance(policy, Policy)
        self._policy = policy
        self._confidences = confidences
        self._longest = longest
        costs = costs_of(method)
        self._draft_s = costs.latencies(deployment)[DRAFTER].seconds
        self._block = costs.tokens_per_forward
        self._verify_s = deployment.verifier.pass_s
        self._decision_s = costs.decides_in_s(deployment)

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of the policy's draft forwards and of verifying the tokens that it chose."""
        rows = rows_of(batch, chunks)
        if chunks or any(not cached for _, cached in rows):
            return self._verify_s(rows) + self._draft_s(rows), 0
        drafter = _ConfidenceDrafter(
            batch, self._confidences([request.client for request in batch]), self._longest, self._block
        )
        self._policy.draft(cast("Drafter", drafter))
        chosen = [len(nodes) for nodes in self._policy.choose(drafter.drafts)]
        seconds = sum(map(self._draft_s, drafter.forwards)) + self._decision_s * drafter.drafted
        verified = [(new + submitted, cached) for (new, cached), submitted in zip(rows, chosen, strict=True)]
        return seconds + self._verify_s(verified), np.array(chosen)


class _ConfidenceDrafter:
    """The drafter that a policy sees: chains whose tokens have nothing but a confidence."""

    def __init__(
        self, batch: Sequence[WaitingRound], confidences: Sequence[Sequence[float]], longest: int, block: int
    ) -> None:
        self.drafts = []
        self.drafted = 0
        """Tokens of all chains."""
        self._block = block
        for round_ in batch:
            # The policy needs a request's name and the length of its context, nothing else.
            request = SimpleNamespace(id=str(round_.client))
            session = SimpleNamespace(request=request, tokens=range(round_.cached + round_.new))
            self.drafts.append(Draft(cast("Session", session), TokenTree(0)))
        self.forwards: list[list[tuple[int, int]]] = []
        """New and cached tokens of each request, forward by forward."""
        self._chains = {id(draft): _Chain(chain) for draft, chain in zip(self.drafts, confidences, strict=True)}
        self._longest = longest

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take."""
        return self._longest - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain; return those that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        self.drafted += len(grown)
        forwarded = [draft for draft in grown if draft.tree.last % self._block == 0]
        if forwarded:
            self.forwards.append([(self._block, draft.context_length - 1 + draft.tree.last) for draft in forwarded])
        for draft in grown:
            position = draft.tree.last
            draft.tree.add(0, position, self._chains[id(draft)], position)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Refuse to draft trees: acceptance rates describe chains."""
        raise SkitError("a simulated server drafts chains from acceptance rates: name the folder of a run instead")


class _Chain:
    sampled = False

    def __init__(self, confidences: Sequence[float]) -> None:
        self._confidences = confidences

    def stats(self, row: int, token: int) -> NodeStats:
        raise SkitError(NEEDS_TRACE)

    def probability(self, row: int, token: int) -> float:
        return self._confidences[row]

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        raise SkitError(NEEDS_TRACE)


NEEDS_TRACE = (
    "a simulated server knows only the probability of a drafted token, and this method reads more: name a trace or "
    "the folder of a run as --acceptance"
)
