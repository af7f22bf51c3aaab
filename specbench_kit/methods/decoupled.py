"""Drafting that never waits: chunks are sent as they are drafted, and any number of them is on its way."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Environment, Method, Policy, SendsAhead, methods
from specbench_kit.methods.pearl import PearlPolicy

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("decoupled")
@dataclass(frozen=True)
class Decoupled(Method):
    """Draft without waiting for verdicts, and send every `k` tokens as soon as they are drafted.

    Up to `in_flight` chunks are drafted beyond what is verified, so that a link is crossed while others are verified.
    The server verifies a chunk if the text that it was drafted for is the one that it has, and drops it otherwise: what
    follows a wrong token costs it nothing. After a wrong token the server computes the next one by itself at once,
    while the device, which hears of it later, drafts anew. Where every token is wrong, this is as fast as the server
    alone. Under sampling a chunk goes on only if its first token is the one that the target draws.

    DSI starts further target instances to verify chunks in parallel, where the server here verifies one after the
    other, and lets the target decode on until a chunk arrives, as a `skit serve` does: it verifies what it does not
    have yet. Under a deployment the server waits for a chunk whose first token is right, which no real one can know.
    """

    k: int = 4
    in_flight: int = 3
    source = "DSI, Timor et al., arXiv 2405.14105"
    reported_result = "1.29 to 1.92 times speculative decoding"
    group = "overlapping"
    required_capability = Capability.TOKENS
    overlaps = True
    needs = "a deployment or a skit serve"
    grid = MappingProxyType({"k": (2, 3, 4, 6), "in_flight": (2, 3, 4)})
    draft_limit = "k"

    def __post_init__(self) -> None:
        self.require_at_least(2, "k")
        self.require_at_least(1, "in_flight")

    def prepare(self, environment: Environment) -> Method:
        environment.require_link("decoupled")
        return self

    @property
    def longest_chain(self) -> int:
        return self.k * self.in_flight

    @property
    def ahead(self) -> SendsAhead:
        return SendsAhead(self.k, self.in_flight)

    def policy(self) -> Policy:
        return _DecoupledPolicy(self.k, self.in_flight)


class _DecoupledPolicy(PearlPolicy):
    def __init__(self, k: int, in_flight: int) -> None:
        super().__init__(k, pre_verify=True)
        self.longest = k * in_flight

    def draft(self, drafter: "Drafter") -> None:
        super().draft(drafter)
        for draft in drafter.drafts:
            draft.tree.sent_early = True

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        # The first of a chunk's `k` tokens is the root by now; what lies behind the others is of later chunks.
        return [list(range(1, min(self.k, len(draft.tree)))) for draft in drafts]

    def overlap(self, drafter: "Drafter") -> None:
        self.first_ahead = {draft.request_id: min(self.k, len(draft.tree)) for draft in drafter.drafts}
        live = list(drafter.drafts)
        while live := [draft for draft in live if draft.tree.last < self.longest and drafter.awaits_answer(draft)]:
            live = drafter.extend(live)
