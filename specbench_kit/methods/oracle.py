"""The fastest draft lengths, as an upper bound."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specbench_kit.core.option import OptionValues
from specbench_kit.methods.base import (
    LONGEST_DRAFT,
    Capability,
    Environment,
    Method,
    Policy,
    methods,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench_kit.decoding.drafter import Draft, Drafter, PlannedRound


@methods.register("oracle")
@dataclass(frozen=True)
class Oracle(Method):
    """Draft and send the numbers of tokens with which the whole answer takes the least time, none
    of them wrong.

    It reads the target's answer, so it cannot be deployed. It is an upper bound for all rules that
    decide how many tokens of its drafter a round drafts and sends, and that wait for the verdict:
    not for trees, not for drafting ahead, and not for other drafters. Drafts have up to `max_draft`
    tokens, by default 8, or as many as any method of the benchmark drafts. Rounds may draft
    nothing, and under a deployment whose drafts cross a link the server may decode such rounds by
    itself.

    Lengths come from dynamic programming over all positions of the answer, by the times of the
    deployment or of the machine that recorded a trace. Jitter and lost messages count with their
    means: a rule that foresaw the draws could be faster. In a batch, every request has the lengths
    that would be best alone, which is no bound. Where times or drafts are not known beforehand (on
    this machine's clock; with drafters other than the draft model in a live run; with drafters of
    blocks or of several kinds), it stops at the first token that the target will reject, which is
    drafted but not sent: the fewest rounds, and not always the least time.
    """

    max_draft: int | None = None
    server_decodes: bool = field(default=False, init=False, repr=False, kw_only=True)
    """True if rounds may go to the server's own decoding."""
    chosen: bool = field(default=False, init=False, repr=False, kw_only=True)
    """True if `max_draft` follows from the methods of the benchmark."""
    required_capability = Capability.TOKENS
    source = "upper bound"
    group = "bounds"
    proposal = "top"
    needs_reference = True

    def __post_init__(self) -> None:
        if self.max_draft is not None:
            self.require_at_least(1, "max_draft")

    def prepare(self, environment: Environment) -> Method:
        ready = copy(self)
        object.__setattr__(ready, "server_decodes", environment.server_decodes)
        if self.max_draft is None:
            object.__setattr__(ready, "max_draft", environment.longest_draft)
            object.__setattr__(ready, "chosen", True)
        return ready

    def chosen_options(self) -> OptionValues:
        return {"max_draft": self.max_draft} if self.chosen else {}

    def policy(self) -> Policy:
        return _OraclePolicy(self.max_draft or LONGEST_DRAFT, self.server_decodes)


@dataclass
class _OraclePolicy(Policy):
    max_draft: int
    server_decodes: bool
    plans: "dict[str, Mapping[int, PlannedRound] | None]" = field(default_factory=dict)
    """By request, its fastest rounds by the number of tokens produced before; None if they are not
    known.
    """

    def draft(self, drafter: "Drafter") -> None:
        lengths = {draft.request_id: self._length(drafter, draft) for draft in drafter.drafts}
        live = list(drafter.drafts)
        while live := [draft for draft in live if draft.tree.last < lengths[draft.request_id]]:
            live = [draft for draft in drafter.extend(live) if _agrees(draft, draft.tree.last)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [
            [node for node in range(1, len(draft.tree)) if _agrees(draft, node)] for draft in drafts
        ]

    def forget(self, request_id: str) -> None:
        self.plans.pop(request_id, None)

    def _length(self, drafter: "Drafter", draft: "Draft") -> int:
        """Return how many tokens this round drafts at most, and tell the server what it may do
        after the round.
        """
        name = draft.request_id
        if name not in self.plans:
            self.plans[name] = drafter.fastest_rounds(
                draft, self.max_draft, server_decodes=self.server_decodes
            )
        # A round that ended before its plan, since two tokens were all but equally likely, leads
        # off the planned way.
        planned = (self.plans[name] or {}).get(draft.session.produced)
        if planned is None:
            return self.max_draft
        draft.tree.server_continues = planned.server_continues
        return planned.drafted


def _agrees(draft: "Draft", node: int) -> bool:
    """Return True if the target's answer has the node's token at its position."""
    position = draft.tree.depth(node) - 1
    return position < len(draft.reference) and draft.tree.tokens[node] == draft.reference[position]
