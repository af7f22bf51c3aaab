"""An engine of others behind the verifier's contract: greedy chains, or matching what its sampler draws."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.engines.base import EngineAdapter, ScoringRequest

AT_ONCE = 64
SEED_BYTES = 4


@dataclass
class EngineVerifier:
    """Asks an engine for the target's tokens. Nothing of a text is kept here: its prefix cache may."""

    engine: EngineAdapter
    sampler: Sampler
    seed: int
    asynchronous: bool = True
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "verification"))
    _asking: list[Future[list[int]]] = field(default_factory=list)

    def admit(self, session: Session) -> None:
        """Nothing is to be done for a new text."""

    def release(self, session: Session) -> None:
        """Nor for one that has ended."""

    def commit(self, verdict: Verdict) -> None:
        """Nor for what was accepted."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Ask for every draft at the same time."""
        asked = [self._asked(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        self._asking = [self._pool.submit(self.engine.target_tokens, one) for one in asked]
        return lambda: [
            _verdict(draft, nodes, answer.result())
            for draft, nodes, answer in zip(drafts, chosen, self._asking, strict=True)
        ]

    def answer_arrived(self) -> bool:
        """Whether the answers are there."""
        return all(one.done() for one in self._asking)

    def _asked(self, draft: Draft, nodes: list[int]) -> ScoringRequest:
        tree = draft.tree
        if [tree.parents[node] for node in nodes] != [0, *nodes][: len(nodes)]:
            raise SkitError("an engine of others verifies chains alone: name a method that drafts a chain")
        if any(tree.source(node)[0].sampled for node in nodes):
            raise SkitError(
                "an engine of others does not tell the probabilities that drafts drawn at random need: name a method "
                "that drafts the likeliest tokens, or leave out --temperature"
            )
        session = draft.session
        places = range(session.produced, session.produced + len(nodes) + 1)
        seeds = [_seed(self.seed, session.request.id, place) for place in places]
        return ScoringRequest(list(session.tokens), [tree.tokens[node] for node in nodes], self.sampler, seeds)


def _seed(seed: int, request: str, place: int) -> int:
    """Of one place of an output."""
    return int.from_bytes(blake2b(f"{seed}/{request}/{place}".encode(), digest_size=SEED_BYTES).digest()) >> 1


def _verdict(draft: Draft, nodes: list[int], answers: list[int]) -> Verdict:
    path, extra = walk(draft.tree, nodes, answers.__getitem__)
    return Verdict(draft, nodes, path, extra, len(nodes) + 1)
