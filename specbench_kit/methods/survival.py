"""Drafts that are cut by the chance that they are accepted down to a token."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import Policy, expected_accepted

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft


class SurvivalPolicy(Policy):
    """A policy that gives every drafted token a chance, and sends each request's draft up to a
    token of its own.
    """

    def __init__(self) -> None:
        self.chances: defaultdict[str, list[float]] = defaultdict(list)
        """By request, the chance of each token of its draft: that it is accepted if the tokens
        before it are.
        """
        self.survival: defaultdict[str, float] = defaultdict(lambda: 1.0)
        """By request, the product of these."""
        self.sent: defaultdict[str, int] = defaultdict(int)
        """By request, the last token that is sent."""

    def begin_round(self) -> None:
        """Forget the drafts of the round before."""
        for memory in (self.chances, self.survival, self.sent):
            memory.clear()

    def add_token(self, request_id: str, chance: float) -> float:
        """Add a request's newest token, and return the chance that its whole draft is accepted."""
        self.chances[request_id].append(chance)
        self.survival[request_id] *= chance
        return self.survival[request_id]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(range(1, self.sent[draft.request_id] + 1)) for draft in drafts]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(self.chances[draft.request_id][: len(nodes)])
