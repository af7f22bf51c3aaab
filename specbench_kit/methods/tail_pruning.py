"""Draft in blocks, and prune the tail of a draft that is hardly ever reached."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Method, Policy, methods
from specbench_kit.methods.survival import SurvivalPolicy

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("tail-pruning")
@dataclass(frozen=True)
class TailPruning(Method):
    """Draft in blocks of `block` tokens while drafts are likely to reach their end, and prune the
    tail that is not.

    The chance that a draft survives down to a token is the product of the largest draft
    probabilities up to there. After a block, drafting goes on if the chance of its last token is at
    least `threshold`. Tokens below the threshold are not sent, apart from the first one. The
    published pre-verification layer is trained and reads hidden states; here the draft model's own
    probabilities take its place. No state is kept between rounds.
    """

    block: int = 4
    threshold: float = 0.3
    max_draft: int = 16
    source = (
        "PACER, arXiv 2602.01274, and SADDLE (not verified: of PACER the abstract was read, SADDLE could not be had; "
        "rule and defaults are ours)"
    )
    reported_result = "up to 2.66 times autoregressive decoding (PACER, with a trained layer)"
    group = "stop-rule"
    grid = MappingProxyType(
        {"block": (1, 2, 4), "threshold": (0.1, 0.2, 0.3, 0.5, 0.7), "max_draft": (4, 8)}
    )

    def __post_init__(self) -> None:
        self.require_at_least(1, "block", "max_draft")
        self.require_share("threshold")

    def policy(self) -> Policy:
        return _TailPruningPolicy(self)


class _TailPruningPolicy(SurvivalPolicy):
    def __init__(self, options: TailPruning) -> None:
        super().__init__()
        self.options = options

    def draft(self, drafter: "Drafter") -> None:
        self.begin_round()
        live = list(drafter.drafts)
        for position in range(1, self.options.max_draft + 1):
            live = drafter.extend(live)
            for draft in live:
                self._judge(draft)
            if position % self.options.block == 0:
                live = [
                    draft
                    for draft in live
                    if self.survival[draft.request_id] >= self.options.threshold
                ]

    def _judge(self, draft: "Draft") -> None:
        """Decide whether the newest token is sent, by what was known before it was drawn.

        What follows a pruned token is pruned with it, and stays unread: a token may not decide
        about itself.
        """
        newest = draft.tree.last
        if newest > self.sent[draft.request_id] + 1:
            return
        survival = self.add_token(
            draft.request_id, draft.tree.distribution_stats(newest).confidence
        )
        if newest == 1 or survival >= self.options.threshold:
            self.sent[draft.request_id] = newest
