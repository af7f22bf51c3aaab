"""A verifier whose target is in another inference engine: it verifies chains by the target tokens of the engine."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock, monotonic_s
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.engines.base import EngineAdapter, ScoringRequest

THREADS = 64
"""Requests to the engine at a time."""
SEED_BYTES = 4


class _Answer(NamedTuple):
    """The target's tokens for one draft, and when they arrived."""

    tokens: list[int]
    arrived_s: float


@dataclass
class EngineVerifier:
    """Accepts drafted tokens that equal the engine's own; the engine's prefix cache alone remembers the text."""

    engine: EngineAdapter
    sampler: Sampler
    seed: int
    clock: MeasuringClock | None = None
    """Told which part of a round an emulated link took."""
    asynchronous: bool = True
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "verification"))
    _answers: list[Future[_Answer]] = field(default_factory=list)

    def admit(self, session: Session) -> None:
        """Do nothing: every request to the engine holds the whole text."""

    def release(self, session: Session) -> None:
        """Do nothing, as there is no session at the engine."""

    def commit(self, verdict: Verdict) -> None:
        """Do nothing: the next request holds the committed tokens."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Ask for the target tokens of all drafts at the same time."""
        requests = [self._scoring_request(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        if self.engine.link is not None:
            self.engine.link.take_server_s()  # leave out what other loops asked before
        sent_s = monotonic_s()
        self._answers = [self._pool.submit(self._ask, request) for request in requests]
        sending_s = monotonic_s() - sent_s

        def verdicts() -> list[Verdict]:
            began_s = monotonic_s()
            answers = [answer.result() for answer in self._answers]
            if self.engine.link is not None and self.clock is not None:
                # The engine charges the whole wait to the phase "verify"; the link took what the server did not.
                server_s = self.engine.link.take_server_s()
                link_s = max(0.0, max(answer.arrived_s for answer in answers) - sent_s - server_s)
                charged_s = sending_s + monotonic_s() - began_s
                self.clock.split("verify", server_s, charged_s, [("link", link_s, 2)])
            results = []
            for draft, nodes, answer in zip(drafts, chosen, answers, strict=True):
                path, bonus = walk(draft.tree, nodes, answer.tokens.__getitem__)
                results.append(Verdict(draft, nodes, path, bonus, len(nodes) + 1))
            return results

        return verdicts

    def answer_arrived(self) -> bool:
        """Return True if all answers have arrived."""
        return all(answer.done() for answer in self._answers)

    def _ask(self, request: ScoringRequest) -> _Answer:
        tokens = self.engine.target_tokens(request)
        return _Answer(tokens, monotonic_s())

    def _scoring_request(self, draft: Draft, nodes: list[int]) -> ScoringRequest:
        """Return the request for a draft; raise SkitError for a tree or sampled tokens, which no engine can verify."""
        tree = draft.tree
        if [tree.parents[node] for node in nodes] != [0, *nodes][: len(nodes)]:
            raise SkitError("another engine verifies chains alone: name a method that drafts a chain")
        if any(tree.source(node)[0].sampled for node in nodes):
            raise SkitError(
                "another engine does not return the probabilities that sampled drafts need: name a method that drafts "
                "the most likely tokens, or leave out --temperature"
            )
        session, seeds = draft.session, []
        for position in range(session.produced, session.produced + len(nodes) + 1):
            # A seed per position of the output: plain decoding with the same seeds then samples the same tokens.
            text = f"{self.seed}/{session.request.id}/{position}"
            digest = blake2b(text.encode(), digest_size=SEED_BYTES).digest()
            seeds.append(int.from_bytes(digest) >> 1)  # engines take signed 32-bit seeds
        return ScoringRequest(list(session.tokens), [tree.tokens[node] for node in nodes], self.sampler, seeds)
