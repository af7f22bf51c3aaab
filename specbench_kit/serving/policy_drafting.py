"""A server that drafts for its whole batch as a method's own policy decides, from how sure the draft model is."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import DraftForward, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method, Policy
from specbench_kit.serving.execution import Drafted, Parts, rows_of
from specbench_kit.serving.schedulers.waiting import WaitingRound

TokenConfidences = Callable[[Sequence[int]], Sequence[Sequence[float]]]
"""Of each of several clients, the chances of its draft's tokens one after the other."""


class PolicyDrafting:
    """Drafts for the batch and drops single requests' tokens as the method says, to `longest` tokens at most.

    Prompts are read by both models, and not drafted for.
    """

    def __init__(self, deployment: Deployment, method: Method, sureties: TokenConfidences, longest: int) -> None:
        policy = method.policy()
        assert isinstance(policy, Policy)
        self._policy, self._sureties, self._longest = policy, sureties, longest
        self._draft_s, self._verify_s = deployment.drafter.latency.seconds, deployment.verifier.pass_s
        self._decision_s = (deployment.predictor_s or 0.0) if method.learned else 0.0

    def run(self, batch: Sequence[WaitingRound], parts: Parts) -> tuple[float, Drafted]:
        """The policy's drafts, one forward after the other, and one verification of what it chose."""
        rows = rows_of(batch, parts)
        if parts or any(not cached for _, cached in rows):
            return self._verify_s(rows) + self._draft_s(rows), 0
        drafter = _Chances(batch, self._sureties([one.client for one in batch]), self._longest)
        self._policy.draft(cast("Drafter", drafter))
        chosen = [len(nodes) for nodes in self._policy.choose(drafter.drafts)]
        seconds = sum(self._draft_s(forward) + self._decision_s * len(forward) for forward in drafter.forwards)
        sent = [(new + submitted, cached) for (new, cached), submitted in zip(rows, chosen, strict=True)]
        return seconds + self._verify_s(sent), np.array(chosen)


class _Chances:
    """What a policy sees of a batch: chains whose tokens have nothing but their chances."""

    def __init__(self, batch: Sequence[WaitingRound], sureties: Sequence[Sequence[float]], longest: int) -> None:
        self.drafts = [Draft(cast("Any", _session(one)), TokenTree(0)) for one in batch]
        self.forwards: list[list[tuple[int, int]]] = []
        """New and cached tokens of each request, of one forward after the other."""
        self._sources = {id(draft): _Chain(chances) for draft, chances in zip(self.drafts, sureties, strict=True)}
        self._longest = longest

    def room(self, draft: Draft) -> int:
        """Tokens that the chain can still take."""
        return self._longest - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain; returns those that had room for it."""
        grown = [draft for draft in drafts if self.room(draft) > 0]
        if grown:
            self.forwards.append([(1, draft.context_length - 1 + draft.tree.last) for draft in grown])
        for draft in grown:
            place = draft.tree.last
            draft.tree.add(0, place, self._sources[id(draft)], place)
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Odds are of chains."""
        raise SkitError("a simulated server drafts chains where only odds are known: name the folder of a run instead")


class _Chain:
    sampled = False

    def __init__(self, chances: Sequence[float]) -> None:
        self._chances = chances

    def stats(self, row: int, token: int) -> NodeStats:
        raise SkitError(READS_MORE)

    def probability(self, row: int, token: int) -> float:
        return self._chances[row]

    def score(self, row: int, token: int, place: int, judge: TokenScorer) -> float:
        raise SkitError(READS_MORE)


READS_MORE = (
    "a simulated server knows of a drafted token only how likely it is, and this method reads more: name a trace or "
    "the folder of a run as --acceptance"
)


def _session(one: WaitingRound) -> SimpleNamespace:
    """Its context is all that is known of a request."""
    return SimpleNamespace(request=SimpleNamespace(id=str(one.client)), tokens=range(one.cached + one.new))
