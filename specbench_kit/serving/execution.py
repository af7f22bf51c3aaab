"""What a batch costs: seconds of the server's verification, of its drafting, and of drafting on a
device.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from specbench_kit.decoding.latency import BatchSums, Row, sums_of
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import DECISION, DRAFTER, RoundWork, Work
from specbench_kit.methods.specedge import calibrated_depth
from specbench_kit.serving.arrays import Integers
from specbench_kit.serving.drafter_costs import DRAFT_MODEL, DrafterCosts
from specbench_kit.serving.round_sources import CHAIN
from specbench_kit.serving.schedulers.waiting import WaitingRound

Chunks = Mapping[int, int]
"""Tokens that a batch computes of each client whose round it computes only in part."""
RoundDrafts = Callable[[Sequence[int]], Sequence["RoundDraft"]]
"""Returns what each of several clients drafts in its round."""
Drafted = Integers | int | None
"""The most tokens that the server drafted for every request, or for each; None if it does not
draft.
"""
AlonePiece = tuple[int, int, int]
"""A piece of work that a request takes by itself: the number of its model, and new and cached
tokens.
"""
NO_MODEL = -1
"""Stands for the model of a predictor's decision, which is no forward."""
CACHED_TIMES = 1 << 17
"""Draft times that are remembered, by draft length and context."""


class DraftTime:
    """Seconds that an edge device takes to draft, by the works of its source, or forward by
    forward.
    """

    def __init__(
        self,
        deployment: Deployment,
        costs: DrafterCosts = DRAFT_MODEL,
        works: Sequence[RoundWork] = (),
    ) -> None:
        self._latencies = costs.latencies(deployment)
        self._latency = self._latencies[DRAFTER]
        self._block = costs.tokens_per_forward
        self._decision_s = costs.decides_in_s(deployment)
        self._works = works
        # Millions of rounds have few different shapes.
        self.draft_s = lru_cache(CACHED_TIMES)(self._draft_s)
        self.prefill_s = lru_cache(CACHED_TIMES)(self._prefill_s)
        self.before_s = lru_cache(CACHED_TIMES)(self._before_s)
        self.ahead_s = lru_cache(CACHED_TIMES)(self._ahead_s)

    def _draft_s(self, steps: int, missing: int, cached: int) -> float:
        """Return the seconds of drafting `steps` tokens, the first of which also adds `missing`
        tokens to the KV.
        """
        if not steps:
            return 0.0
        spare = self._block - 1  # a forward of a block has as many positions more
        seconds = self._latency.seconds(((missing + spare, cached),))
        for context in range(missing + cached, missing + cached + steps - 1)[spare :: self._block]:
            seconds += self._latency.seconds(((1 + spare, context),))
        return seconds + steps * self._decision_s

    def _prefill_s(self, prompt: int) -> float:
        # The last token of the prompt is the first one that drafting forwards.
        return self._latency.seconds(((prompt - 1, 0),)) if prompt > 1 else 0.0

    def _before_s(self, work: int, reads: int, context: int) -> float:
        """Return the seconds of a round's work before its draft is sent.

        `reads` is 1 while a response makes the rounds of its first record: prompts are read there, and not again.
        """
        return self._pieces_s(self._works[work].before, reads, context)

    def _ahead_s(self, work: int, pieces: int, reads: int, context: int) -> float:
        """Return the seconds of the first pieces of a round's work ahead of the verdict."""
        return self._pieces_s(self._works[work].ahead[:pieces], reads, context)

    def _pieces_s(self, pieces: Sequence[Work], reads: int, context: int) -> float:
        seconds = 0.0
        for piece in pieces:
            if piece.model == DECISION:
                seconds += self._decision_s
            elif reads or not piece.reads_prompt:
                seconds += self._latencies[piece.model].seconds((piece.row(context),))
        return seconds

    def free_s(
        self, work: int, reads: int, context: int, sent_s: float, answered_s: float
    ) -> float:
        """Return when the device is free that sent its draft and had its answer at these times.

        It begins no further piece of its work ahead once the answer is there, and ends the one that
        is under way.
        """
        free_s = sent_s
        for pieces in range(1, len(self._works[work].ahead) + 1):
            if free_s >= answered_s:
                break
            free_s = sent_s + self.ahead_s(work, pieces, reads, context)
        return max(answered_s, free_s)


class BatchExecution(Protocol):
    """One way in which the server processes a batch."""

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of a batch, and how many tokens the server drafted for its requests if
        it drafts.
        """


class SummedExecution(BatchExecution, Protocol):
    """An execution whose seconds follow from sums over the requests, as the compiled event loop
    makes them.
    """

    def seconds(self, verified: BatchSums, forwards: Sequence[BatchSums] | None) -> float:
        """Return the seconds of a verification with these sums, and of the draft model's forwards
        before it.

        `forwards` is None for a server that does not draft, and for a batch with a prompt, for which none drafts.
        """


class VerificationOnly:
    """One forward of the target over tokens that were drafted elsewhere; `drafted` is 0 if nobody
    drafts.
    """

    def __init__(self, deployment: Deployment, drafted: int | None) -> None:
        self._verifier = deployment.verifier
        self._drafted = drafted

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of one forward over all requests."""
        rows = (
            [(request.new, request.cached) for request in batch]
            if not chunks
            else rows_of(batch, chunks)
        )
        return self.seconds(sums_of(rows)), self._drafted

    def seconds(self, verified: BatchSums, forwards: Sequence[BatchSums] | None = None) -> float:
        """Return the seconds of one forward with these sums."""
        # Without drafts only the last token of each request needs logits, also in a chunk of a
        # prompt.
        return self._verifier.of_sums(
            verified if self._drafted is None else verified._replace(logit_rows=verified.requests)
        )


class RoundDraft(NamedTuple):
    """What a request drafts in its round: tokens, of which some are submitted, and the work that
    this takes.

    `reads` is as in `DraftTime`.
    """

    steps: int
    submitted: int
    work: int = CHAIN
    reads: int = 0


class RoundDrafting:
    """Drafting on the server as far as each request's round says, at most `longest` tokens, then
    one verification.

    Recorded rounds take their recorded works: forwards of all requests side by side, and prompts
    one after the other. Where rounds are drawn, prompts are read by both models; a step that holds
    prompts is drafted for the other requests in it only if the server `mixes_prompts` with them.
    """

    def __init__(
        self,
        deployment: Deployment,
        drafts: RoundDrafts,
        longest: int,
        costs: DrafterCosts = DRAFT_MODEL,
        works: Sequence[RoundWork] = (),
        *,
        mixes_prompts: bool = False,
    ) -> None:
        self._mixes_prompts = mixes_prompts
        self._latencies = costs.latencies(deployment)
        self._draft_s = self._latencies[DRAFTER].of_sums
        self._verify_s = deployment.verifier.of_sums
        self._decision_s = costs.decides_in_s(deployment)
        self._block = costs.tokens_per_forward
        self._drafts = drafts
        self._works = works
        self._models = list(self._latencies)
        self._of_models = list(self._latencies.values())
        self.longest = longest

    def run(self, batch: Sequence[WaitingRound], chunks: Chunks) -> tuple[float, Drafted]:
        """Return the seconds of all draft forwards, each over the requests that go on, and of the
        verification.
        """
        rows = rows_of(batch, chunks)
        if self._works:
            return self._run_works(batch, rows, chunks)
        if chunks or not all(cached for _, cached in rows):
            if self._mixes_prompts:
                return self._run_beside_prompts(batch, rows, chunks)
            return self.seconds(sums_of(rows), None), 0
        clients = [request.client for request in batch]
        drafts = [
            (min(draft.steps, self.longest), min(draft.submitted, self.longest))
            for draft in self._drafts(clients)
        ]
        forwards = []
        for step in range(max(steps for steps, _ in drafts))[:: self._block]:
            going_on = [
                (self._block, cached + step)
                for (_, cached), (steps, _) in zip(rows, drafts, strict=True)
                if steps > step
            ]
            forwards.append(sums_of(going_on))
        verified = sums_of(
            (new + submitted, cached)
            for (new, cached), (_, submitted) in zip(rows, drafts, strict=True)
        )
        return self.seconds(verified, forwards), max(submitted for _, submitted in drafts)

    def _run_beside_prompts(
        self, batch: Sequence[WaitingRound], rows: Sequence[Row], chunks: Chunks
    ) -> tuple[float, Drafted]:
        """Return the seconds of a step that holds prompts, or parts of them, beside requests that go
        on.

        The first forward of what drafts reads the prompts too.
        """
        goes_on = [
            bool(cached) and request.client not in chunks
            for request, (_, cached) in zip(batch, rows, strict=True)
        ]
        clients = [request.client for request, going in zip(batch, goes_on, strict=True) if going]
        drafts = iter(self._drafts(clients) if clients else ())
        lengths = []
        submitted = []
        for going in goes_on:
            draft = next(drafts) if going else None
            lengths.append(min(draft.steps, self.longest) if draft else 0)
            submitted.append(min(draft.submitted, self.longest) if draft else 0)
        forwards = []
        for step in range(max(lengths, default=0))[:: self._block]:
            going_on = [
                (self._block, cached + step)
                for (_, cached), steps in zip(rows, lengths, strict=True)
                if steps > step
            ]
            forwards.append(going_on)
        read = [row for row, going in zip(rows, goes_on, strict=True) if not going]
        if read:
            forwards = [[*read, *forwards[0]], *forwards[1:]] if forwards else [read]
        verified = sums_of(
            (new + more, cached) for (new, cached), more in zip(rows, submitted, strict=True)
        )
        seconds = self.seconds(verified, [sums_of(forward) for forward in forwards])
        return seconds, np.array(submitted)

    def seconds(self, verified: BatchSums, forwards: Sequence[BatchSums] | None) -> float:
        """Return the seconds of the draft forwards, and of the verification; a batch with a prompt
        has no forwards.
        """
        if forwards is None:
            return self._verify_s(verified) + self._draft_s(verified)
        drafting_s = 0.0
        for sums in forwards:
            drafting_s += self._draft_s(sums) + self._decision_s * sums.requests * self._block
        return drafting_s + self._verify_s(verified)

    def _run_works(
        self, batch: Sequence[WaitingRound], rows: Sequence[Row], chunks: Chunks
    ) -> tuple[float, Drafted]:
        """Return the seconds of the requests' recorded works and of the verification; parts of
        prompts have no work.
        """
        drafts = self._drafts([request.client for request in batch])
        alone: list[AlonePiece] = []
        verified: list[Row] = []
        forwards: dict[tuple[int, int], list[Row]] = {}
        for request, draft, (new, cached) in zip(batch, drafts, rows, strict=True):
            if request.client in chunks:
                verified.append((new, cached))
                continue
            verified.append((new + draft.submitted, cached))
            step = 0
            for piece in self._works[draft.work].before:
                row = piece.row(new + cached)
                if piece.model == DECISION:
                    alone.append((NO_MODEL, 0, 0))
                elif not piece.reads_prompt:
                    forwards.setdefault((step, self._number_of(piece)), []).append(row)
                    step += 1
                elif draft.reads:
                    alone.append((self._number_of(piece), *row))
        summed = [(model, sums_of(of_all)) for (_, model), of_all in forwards.items()]
        seconds = self.seconds_of_works(sums_of(verified), alone, summed)
        submitted = [
            0 if request.client in chunks else draft.submitted
            for request, draft in zip(batch, drafts, strict=True)
        ]
        return seconds, np.array(submitted)

    def seconds_of_works(
        self,
        verified: BatchSums,
        alone: Sequence[AlonePiece],
        forwards: Sequence[tuple[int, BatchSums]],
    ) -> float:
        """Return the seconds of pieces that requests take alone, of forwards of a model, and of the
        verification.
        """
        seconds = 0.0
        for model, new, cached in alone:
            seconds += (
                self._decision_s
                if model == NO_MODEL
                else self._of_models[model].seconds(((new, cached),))
            )
        for model, sums in forwards:
            seconds += self._of_models[model].of_sums(sums)
        return seconds + self._verify_s(verified)

    def pieces(self) -> Integers:
        """Return the pieces of all works: work, model, new, cached, and whether they read a prompt
        or have text.
        """
        table = [
            (
                number,
                self._number_of(piece),
                piece.new,
                piece.cached,
                piece.reads_prompt,
                piece.has_text,
            )
            for number, work in enumerate(self._works)
            for piece in work.before
        ]
        # The last work is there even if nothing is drafted in it.
        return np.array(
            [*table, (len(self._works), NO_MODEL, 0, 0, 0, 0)] if self._works else [],
            dtype=np.int64,
        )

    def _number_of(self, piece: Work) -> int:
        return NO_MODEL if piece.model == DECISION else self._models.index(piece.model)


def rows_of(batch: Sequence[WaitingRound], chunks: Chunks) -> list[Row]:
    """Return new and cached tokens of each request."""
    return [(chunks.get(request.client, request.new), request.cached) for request in batch]


def levels_while_verified(deployment: Deployment, new: int, cached: int) -> int:
    """Return how many tree levels SpecEdge grows on a device while a verification of that shape is
    under way.
    """
    verify_s = deployment.verifier.pass_s(((new, cached),))
    return calibrated_depth(
        verify_s, deployment.link.rtt_s, deployment.drafter.latency.seconds(((1, cached),))
    )
