"""Drafting that never waits: chunks are sent as they are drafted, and any number of them is on its
way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import RunsAheadPolicy
from specbench_kit.methods.base import Capability, Environment, Method, Policy, SendsAhead, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("decoupled")
@dataclass(frozen=True)
class Decoupled(Method):
    """Draft without waiting for verdicts, and send every `k` tokens as soon as they are drafted.

    Up to `in_flight` chunks are drafted beyond what is verified, so that a link is crossed while
    others are verified. The server never waits: when it is free it verifies the next chunk that was
    drafted for the text that it has, if one has arrived, and otherwise computes the next token by
    itself. What follows a wrong token costs it nothing, and where every token is wrong, it is as
    fast as the server alone. The device hears of a wrong token later, and then drafts anew. Under
    sampling a chunk goes on only if its first token is the one that the target draws.

    Under a deployment a drafter that begins each round anew, such as block, has nothing on its way,
    so that the server decodes alone.

    DSI starts further target instances to verify chunks in parallel, where the server here verifies
    one after the other, and lets the target decode on until a chunk arrives, as here.
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
        return self.ahead.longest

    @property
    def ahead(self) -> SendsAhead:
        return SendsAhead(self.k, self.in_flight)

    def policy(self) -> Policy:
        return _DecoupledPolicy(self.ahead)


class _DecoupledPolicy(RunsAheadPolicy):
    def __init__(self, ahead: SendsAhead) -> None:
        super().__init__(ahead.longest)
        self.k = ahead.chunk
        self.begun: dict[str, int] = {}
        """By request, how many tokens stood before what is being drafted when drafting began
        anew.
        """
        self.arrived: dict[str, int] = {}
        """By request, the last node of the chunk that the server has when this round begins; 0
        without one.
        """

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            tree = draft.tree
            if not tree.inherited:
                self.begun[draft.request_id] = draft.context_length
            end = self.k - (draft.context_length - self.begun[draft.request_id]) % self.k
            is_there = end <= tree.last and drafter.has_reached_server(draft, end)
            self.arrived[draft.request_id] = end if is_there else 0
            tree.sent_early = True

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(range(1, 1 + self.arrived[draft.request_id])) for draft in drafts]

    def forget(self, request_id: str) -> None:
        self.begun.pop(request_id, None)
        self.arrived.pop(request_id, None)
