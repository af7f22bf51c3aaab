"""The draft length with the least time per token on the present channel, within a device's energy
per token.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from specbench_kit.methods.base import Capability, Latencies, Policy, methods, require
from specbench_kit.methods.chosen_length import AcceptanceRate, expected_tokens
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.link_estimate import FollowingPolicy
from specbench_kit.methods.round_costs import draft_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench_kit.decoding.drafter import Draft


@methods.register("flexspec")
@dataclass(frozen=True)
class FlexSpec(LatencyAware):
    """Draft the number of tokens with the least time per token on the present channel, within a
    budget of energy.

    The state of the channel is a moving average of the time that rounds spend on the way, where the
    newest has the weight `ema`. A device takes `draft_w` watts while it drafts and `radio_w` watts
    while it waits for an answer. Of the lengths from 1 to `max_draft` that take no more than
    `budget_j` joules per committed token, the fastest is drafted, and the most frugal one where all
    take more; there is no budget by default. The acceptance rate is learned from
    `initial_acceptance` on; each round forgets the share `forget` of the earlier ones.

    Only the abstract of the paper was at hand: the formula is its plainest reading, and not
    verified.
    """

    max_draft: int = 8
    budget_j: float | None = None
    draft_w: float = 10.0
    radio_w: float = 1.0
    ema: float = 0.2
    initial_acceptance: float = 0.7
    forget: float = 0.02
    source = (
        "FlexSpec, arXiv 2601.00644 (not verified: beyond the abstract, its text could not be had; formula, watts and "
        "defaults are ours)"
    )
    group = "link"
    grid = MappingProxyType(
        {"max_draft": (4, 8, 12), "ema": (0.1, 0.2, 0.5), "forget": (0.02, 0.1)}
    )
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        self.require_at_least(0, "draft_w", "radio_w")
        positive = self.budget_j is None or self.budget_j > 0
        require(
            positive, f"flexspec: budget_j must be a number of joules above 0, not {self.budget_j}"
        )
        self.require_share("ema", "initial_acceptance", "forget")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _FlexSpecPolicy(self, latencies)


class TokenCost(NamedTuple):
    """The seconds and the joules of a device that a committed token takes with drafts of `length`
    tokens.
    """

    length: int
    seconds: float
    joules: float


class _FlexSpecPolicy(FollowingPolicy):
    def __init__(self, options: FlexSpec, latencies: Latencies) -> None:
        acceptance = AcceptanceRate(options.initial_acceptance, options.forget)
        super().__init__(acceptance, latencies, options.ema, counts_link=options.link)
        self.options = options

    def best_length(self, drafts: "Sequence[Draft]") -> int:
        costs = self.costs(drafts)
        budget_j = self.options.budget_j
        affordable = [cost for cost in costs if budget_j is None or cost.joules <= budget_j]
        if affordable:
            return min(affordable, key=lambda cost: cost.seconds).length
        return min(costs, key=lambda cost: cost.joules).length

    def costs(self, drafts: "Sequence[Draft]") -> list[TokenCost]:
        """Return what a committed token takes by draft length, from 1 on."""
        costs = []
        for length in range(1, self.options.max_draft + 1):
            drafting_s = draft_s(self.latencies, drafts, length)
            round_s = self.round_s(drafts, length)
            joules = self.options.draft_w * drafting_s + self.options.radio_w * (
                round_s - drafting_s
            )
            tokens = expected_tokens(self.acceptance.value, length)
            costs.append(TokenCost(length, round_s / tokens, joules / tokens))
        return costs
