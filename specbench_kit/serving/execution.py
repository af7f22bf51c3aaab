"""What a batch costs: seconds of the server's verification, of its drafting, and of drafting on a device."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from specbench_kit.decoding.latency import BatchSums, Row, sums_of
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.specedge import calibrated_depth
from specbench_kit.serving.arrays import Integers
from specbench_kit.serving.schedulers.waiting import WaitingRound

Chunks = Mapping[int, int]
"""Tokens that a batch computes of each client whose round it computes only in part."""
RoundDrafts = Callable[[Sequence[int]], list[tuple[int, int]]]
"""Returns the draft model's forwards and the submitted tokens of each of several clients."""
Drafted = Integers | int | None
"""The most tokens that the server drafted for every request, or for each; None if it does not draft."""
CACHED_TIMES = 1 << 17
"""Draft times that are remembered, by draft length and context."""


class DraftTime:
    """Seconds that an edge device takes to draft; with `learned`, a predictor judges every drafted token."""

    def __init__(self, deployment: Deployment, learned: bool) -> None:
        self._latency = deployment.drafter.latency
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        # Millions of rounds have few different shapes.
        self.draft_s = lru_cache(CACHED_TIMES)(self._draft_s)
        self.prefill_s = lru_cache(CACHED_TIMES)(self._prefill_s)

    def _draft_s(self, steps: int, missing: int, cached: int) -> float:
        """Return the seconds of `steps` forwards, the first of which also adds `missing` tokens to the KV."""
        if not steps:
            return 0.0
        seconds = self._latency.seconds(((missing, cached),))
        for context in range(missing + cached, missing + cached + steps - 1):
            seconds += self._latency.seconds(((1, context),))
        return seconds + steps * self._decision_s

    def _prefill_s(self, prompt: int) -> float:
        # The last token of the prompt is the first one that drafting forwards.
        return self._latency.seconds(((prompt - 1, 0),)) if prompt > 1 else 0.0


class BatchExecution(Protocol):
    """One way in which the server processes a batch."""

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of a batch, and how many tokens the server drafted for its requests if it drafts."""


class SummedExecution(BatchExecution, Protocol):
    """An execution whose seconds follow from sums over the requests, as the compiled event loop makes them."""

    def seconds(self, verified: BatchSums, forwards: Sequence[BatchSums] | None) -> float:
        """Return the seconds of a verification with these sums, and of the draft model's forwards before it.

        `forwards` is None for a server that does not draft, and for a batch with a prompt, for which none drafts.
        """


class VerificationOnly:
    """One forward of the target over tokens that were drafted elsewhere; `drafted` is 0 if nobody drafts."""

    def __init__(self, deployment: Deployment, drafted: int | None) -> None:
        self._verifier = deployment.verifier
        self._drafted = drafted

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of one forward over all requests."""
        rows = [(request.new, request.cached) for request in batch] if not chunks else rows_of(batch, chunks)
        return self.seconds(sums_of(rows)), self._drafted

    def seconds(self, verified: BatchSums, forwards: Sequence[BatchSums] | None = None) -> float:
        """Return the seconds of one forward with these sums."""
        # Without drafts only the last token of each request needs logits, also in a chunk of a prompt.
        return self._verifier.of_sums(
            verified if self._drafted is None else verified._replace(logit_rows=verified.requests)
        )


class RoundDrafting:
    """Drafting on the server as far as each request's round says, at most `longest` tokens, then one verification.

    Prompts are read by both models; a batch with a prompt is not drafted for.
    """

    def __init__(self, deployment: Deployment, drafts: RoundDrafts, longest: int, *, learned: bool) -> None:
        self._draft_s = deployment.drafter.latency.of_sums
        self._verify_s = deployment.verifier.of_sums
        self._decision_s = (deployment.predictor_s or 0.0) if learned else 0.0
        self._drafts = drafts
        self.longest = longest

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of all draft forwards, each over the requests that go on, and of the verification."""
        rows = rows_of(batch, chunks)
        if chunks or any(not cached for _, cached in rows):
            return self.seconds(sums_of(rows), None), 0
        clients = [request.client for request in batch]
        drafts = [
            (min(steps, self.longest), min(submitted, self.longest)) for steps, submitted in self._drafts(clients)
        ]
        forwards = []
        for step in range(max(steps for steps, _ in drafts)):
            going_on = [
                (1, cached + step) for (_, cached), (steps, _) in zip(rows, drafts, strict=True) if steps > step
            ]
            forwards.append(sums_of(going_on))
        verified = sums_of(
            (new + submitted, cached) for (new, cached), (_, submitted) in zip(rows, drafts, strict=True)
        )
        return self.seconds(verified, forwards), max(submitted for _, submitted in drafts)

    def seconds(self, verified: BatchSums, forwards: Sequence[BatchSums] | None) -> float:
        """Return the seconds of the draft forwards, and of the verification; a batch with a prompt has no forwards."""
        if forwards is None:
            return self._verify_s(verified) + self._draft_s(verified)
        drafting_s = 0.0
        for sums in forwards:
            drafting_s += self._draft_s(sums) + self._decision_s * sums.requests
        return drafting_s + self._verify_s(verified)


def rows_of(batch: Sequence[WaitingRound], chunks: Chunks) -> list[Row]:
    """Return new and cached tokens of each request."""
    return [(chunks.get(request.client, request.new), request.cached) for request in batch]


def levels_while_verified(deployment: Deployment, new: int, cached: int) -> int:
    """Return how many tree levels SpecEdge grows on a device while a verification of that shape is under way."""
    verify_s = deployment.verifier.pass_s(((new, cached),))
    return calibrated_depth(verify_s, deployment.link.rtt_s, deployment.drafter.latency.seconds(((1, cached),)))
