"""Rounds on their way through the server: as they wait, and as they come out of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.live.server.generation import Generation
from specbench_kit.live.server.sessions import ServerSession


@dataclass(slots=True, eq=False)
class PendingRound:
    """A round that waits to be verified; the draft of a `degraded` one is not verified.

    `round_s` and `remaining_s` are the times from arrival to the deadlines of the round and of the response. A round of
    a `generation` has no draft of a device. The device has the hidden states of the first `states` tokens.
    """

    session: ServerSession
    number: int
    draft: Draft
    arrived_s: float
    round_s: float
    remaining_s: float
    degraded: bool = False
    generation: Generation | None = None
    states: int = 0
    chosen: list[int] | None = None
    """The nodes to verify of a tree that was drafted here."""
    draft_s: float = 0.0
    """The round's share of the seconds of drafting here."""

    @property
    def nodes(self) -> list[int]:
        if self.chosen is not None:
            return self.chosen
        return [] if self.degraded else list(range(1, len(self.draft.tree)))


def generated_round(
    session: ServerSession, generation: Generation, arrived_s: float
) -> PendingRound:
    """Return the next round of a generation, which waits from `arrived_s` on."""
    draft = Draft(session.text, TokenTree(session.text.tokens[-1]))
    round_s = generation.round_s
    return PendingRound(
        session, generation.number, draft, arrived_s, round_s, round_s, generation=generation
    )


class VerifiedBatch(NamedTuple):
    """A batch: its duration, the one that the scheduler expected, and the rounds that were left in
    the queue.
    """

    number: int
    size: int
    verify_s: float
    expected_s: float
    waiting: int


class VerifiedRound(NamedTuple):
    """A round with its verdict, or with the error that its verification raised.

    `queue_s` is the time from its arrival to the start of its batch, `cached` its tokens in KV at that start. `tokens`
    were committed after the first `base` tokens; the last `forced` of them were not verified. If it `goes_on`, the next
    round of its generation waits already. `states` are the hidden states that the device lacks, as they are sent; empty
    if it asked for none.
    """

    pending: PendingRound
    verdict: Verdict | None
    error: str
    queue_s: float
    cached: int
    batch: VerifiedBatch
    base: int = 0
    tokens: Sequence[int] = ()
    goes_on: bool = False
    states: bytes = b""
    forced: int = 0
