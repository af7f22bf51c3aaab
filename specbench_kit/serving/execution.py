"""How long a device's own work takes, and how long a batch occupies the server."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from specbench_kit.decoding.latency import Row, sums_of
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.specedge import calibrated_depth
from specbench_kit.serving.counter_rng import Integers
from specbench_kit.serving.schedulers.waiting import WaitingRound

Parts = Mapping[int, int]
Drafts = Callable[[Sequence[int]], list[tuple[int, int]]]
"""Forwards of the draft model and tokens sent, of each of several clients."""
Drafted = Integers | int | None
"""The most tokens that a server drafted for every request, or as many as for each; None where it does not draft."""
REMEMBERED = 1 << 17
"""Drafts of one length after one context whose time is kept."""


class DraftTime:
    """Seconds on an edge device."""

    def __init__(self, deployment: Deployment, learned: bool) -> None:
        self._latency = deployment.drafter.latency
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self.draft_s = lru_cache(REMEMBERED)(self._draft_s)
        self.prefill_s = lru_cache(REMEMBERED)(self._prefill_s)

    def _draft_s(self, steps: int, lacking: int, cached: int) -> float:
        """Of `steps` forwards, the first of which brings the KV up to date with `lacking` tokens."""
        if not steps:
            return 0.0
        seconds = self._latency.seconds(((lacking, cached),))
        for place in range(lacking + cached, lacking + cached + steps - 1):
            seconds += self._latency.seconds(((1, place),))
        return seconds + steps * self._decision_s

    def _prefill_s(self, prompt: int) -> float:
        return self._latency.seconds(((prompt - 1, 0),)) if prompt > 1 else 0.0


class BatchExecution(Protocol):
    """What the server does with a batch."""

    def run(self, batch: Sequence[WaitingRound], parts: Parts) -> tuple[float, Drafted]:
        """Its seconds, and where the server drafts, how many tokens it sent on for each request.

        Of clients in `parts` only so many tokens are computed.
        """


class VerificationOnly:
    """The target's forward over tokens that were drafted elsewhere; without a drafter, `drafted` is 0."""

    def __init__(self, deployment: Deployment, drafted: int | None) -> None:
        self._pass_s, self._partly_s, self._drafted = deployment.verifier.pass_s, deployment.verifier.of_sums, drafted

    def run(self, batch: Sequence[WaitingRound], parts: Parts) -> tuple[float, Drafted]:
        """One forward over all rows."""
        rows = [(one.new, one.cached) for one in batch] if not parts else rows_of(batch, parts)
        if self._drafted == 0:
            return self._partly_s(sums_of(rows)._replace(logit_rows=len(rows))), 0
        return self._pass_s(rows), self._drafted


class RecordedDrafting:
    """Drafts for the whole batch, each request as far as its round says and to `longest` tokens at most.

    Prompts are read by both models, and not drafted for.
    """

    def __init__(self, deployment: Deployment, drafts: Drafts, longest: int, *, learned: bool) -> None:
        self._draft_s, self._verify_s = deployment.drafter.latency.seconds, deployment.verifier.pass_s
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self._drafts, self._longest = drafts, longest

    def run(self, batch: Sequence[WaitingRound], parts: Parts) -> tuple[float, Drafted]:
        """A draft forward after the other, each for those that go on, and one verification."""
        rows = rows_of(batch, parts)
        if parts or any(not cached for _, cached in rows):
            return self._verify_s(rows) + self._draft_s(rows), 0
        drafts = [tuple(min(n, self._longest) for n in one) for one in self._drafts([one.client for one in batch])]
        seconds = 0.0
        for step in range(max(steps for steps, _ in drafts)):
            going = [(1, cached + step) for (_, cached), (steps, _) in zip(rows, drafts, strict=True) if steps > step]
            seconds += self._draft_s(going) + self._decision_s * len(going)
        sent = [(new + submitted, cached) for (new, cached), (_, submitted) in zip(rows, drafts, strict=True)]
        return seconds + self._verify_s(sent), max(submitted for _, submitted in drafts)


def rows_of(batch: Sequence[WaitingRound], parts: Parts) -> list[Row]:
    """New and cached tokens of each request."""
    return [(parts.get(one.client, one.new), one.cached) for one in batch]


def levels_of_trees(deployment: Deployment, new: int, cached: int) -> int:
    """Levels that SpecEdge grows on a deployment while the other group's batch is verified."""
    verify_s = deployment.verifier.pass_s(((new, cached),))
    return calibrated_depth(verify_s, deployment.link.rtt_s, deployment.drafter.latency.seconds(((1, cached),)))
