"""One draft length for the whole batch, which follows the measured round trip of a link that
changes.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Latencies, Policy, methods
from specbench_kit.methods.chosen_length import AcceptanceRate, expected_tokens
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.link_estimate import FollowingPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench_kit.decoding.drafter import Draft


@methods.register("measured-link")
@dataclass(frozen=True)
class MeasuredLink(LatencyAware):
    """Draft the number of tokens with the most expected tokens per second at the round trip that
    was measured lately.

    Every round measures the time that it spends neither drafting nor verifying: the round trip with
    all waiting. Its moving average, where the newest round has the weight `ema`, is the link of the
    next round, for which the best of 1 to `max_draft` tokens is drafted. The acceptance rate is
    learned from `initial_acceptance` on; each round forgets the share `forget` of the earlier ones.
    `link=false` counts no link at all.
    """

    max_draft: int = 12
    ema: float = 0.2
    initial_acceptance: float = 0.7
    forget: float = 0.02
    source = "ours: the length of the goodput rule at a measured round trip"
    group = "link"
    grid = MappingProxyType(
        {"max_draft": (4, 8, 12), "ema": (0.1, 0.2, 0.5), "forget": (0.02, 0.1)}
    )
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")
        self.require_share("ema", "initial_acceptance", "forget")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _MeasuredLinkPolicy(self, latencies)


class _MeasuredLinkPolicy(FollowingPolicy):
    def __init__(self, options: MeasuredLink, latencies: Latencies) -> None:
        acceptance = AcceptanceRate(options.initial_acceptance, options.forget)
        super().__init__(acceptance, latencies, options.ema, counts_link=options.link)
        self.max_draft = options.max_draft

    def best_length(self, drafts: "Sequence[Draft]") -> int:
        acceptance = self.acceptance.value
        return max(
            range(1, self.max_draft + 1),
            key=lambda length: expected_tokens(acceptance, length) / self.round_s(drafts, length),
        )
