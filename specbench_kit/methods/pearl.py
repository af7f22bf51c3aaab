"""Draft on during every verification, and let the target test a draft's first token while the rest
is drafted.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Method, Policy, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("pearl")
@dataclass(frozen=True)
class Pearl(Method):
    """Draft `k` tokens during every verification, and send those behind a first one that was right.

    At first, and after every token that the draft did not foresee, the target computes the next
    token from the text alone while the draft model drafts `k` tokens (pre-verify). If their first
    one is right, the others are verified while the next `k` are drafted behind them (post-verify),
    and so on until one of them is wrong. A verification thus commits 1 to `k` tokens. Drafting
    ahead stops when the answer arrives, and what is still missing of a right draft is drafted then.
    With `pre_verify=false` the draft after an unforeseen token is finished first and verified as a
    whole, as in the authors' ablation; over a link this saves the round trip for one token.

    Under sampling a draft goes on only if its first token is the one that the target draws, where
    the authors' code tests it by its probability, which keeps it more often. A request keeps which
    of its tokens were drafted ahead.
    """

    k: int = 4
    pre_verify: bool = True
    source = "PEARL, Liu et al., arXiv 2408.11850"
    reported_result = "up to 4.43 times autoregressive decoding, 1.50 times speculative decoding"
    group = "overlapping"
    required_capability = Capability.TOKENS
    overlaps = True
    grid = MappingProxyType({"k": (2, 3, 4, 5, 6), "pre_verify": (True, False)})
    draft_limit = "k"

    def __post_init__(self) -> None:
        self.require_at_least(2, "k")

    @property
    def longest_chain(self) -> int:
        return 2 * self.k - 1 if self.pre_verify else 2 * self.k

    def policy(self) -> Policy:
        return PearlPolicy(self.k, self.pre_verify)


class PearlPolicy(Policy):
    """Sends what lies behind a first token that was right; otherwise nothing or, without
    `pre_verify`, a new draft.
    """

    def __init__(self, k: int, pre_verify: bool) -> None:
        self.k = k
        self.pre_verify = pre_verify
        self.first_ahead: dict[str, int] = {}
        """By request, the first node that is drafted during this round's verification."""
        self.right: set[str] = set()
        """Requests whose last token was drafted ahead, so that the tokens behind it are sent."""

    def draft(self, drafter: "Drafter") -> None:
        first = 0 if self.pre_verify else self.k
        # The first of the `k` tokens that were drafted ahead is the root now.
        lengths = {
            draft.request_id: self.k - 1 if draft.request_id in self.right else first
            for draft in drafter.drafts
        }
        live = list(drafter.drafts)
        while live := [draft for draft in live if draft.tree.last < lengths[draft.request_id]]:
            live = drafter.extend(live)

    def overlap(self, drafter: "Drafter") -> None:
        self.first_ahead = {draft.request_id: len(draft.tree) for draft in drafter.drafts}
        live = list(drafter.drafts)
        for _ in range(self.k):
            live = [draft for draft in live if drafter.awaits_answer(draft)]
            live = drafter.extend(live) if live else []

    def next_root(self, verdict: "Verdict") -> int | None:
        tree = verdict.draft.tree
        node = self.first_ahead.pop(verdict.draft.request_id)
        foreseen = (
            len(verdict.path) == node - 1
            and node < len(tree)
            and tree.tokens[node] == verdict.bonus
        )
        (self.right.add if foreseen else self.right.discard)(verdict.draft.request_id)
        return node if foreseen else None

    def forget(self, request_id: str) -> None:
        self.first_ahead.pop(request_id, None)
        self.right.discard(request_id)
