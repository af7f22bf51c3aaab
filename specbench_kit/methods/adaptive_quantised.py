"""Chains of rounded distributions whose length and precision are chosen for the link."""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Capability, Latencies, Policy, methods, require
from specbench_kit.methods.chosen_length import AcceptanceRate, expected_tokens
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import round_s
from specbench_kit.methods.sparse_quantised import SparsePolicy, payload_bits, quantised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

ROUNDING_EMA = 0.1
"""The weight of the newest token in the mean distance between a distribution and its rounded
one.
"""


@methods.register("adaptive-quantised")
@dataclass(frozen=True)
class AdaptiveQuantised(LatencyAware):
    """Draft with the length and the precision that commit the most tokens per second over the link.

    Tokens are drawn from the `top` most probable with probabilities in multiples of one of the `levels`, as in
    `sparse-quantised`. The time of a round has the bits of its distributions in it. Coarser levels send less, and cost
    as much of the acceptance rate as the rounded distributions lie further from the draft model's own in total
    variation, which is measured at every drafted token. The rate is learned from `initial_acceptance` on; each round
    forgets the share `forget` of the earlier ones. Greedy decoding sends ids alone: only the length is chosen.

    Only the abstract of the paper was at hand: how precision lowers acceptance is ours, and not
    verified.
    """

    max_draft: int = 8
    top: int = 32
    levels: str = "10-30-100-300"
    initial_acceptance: float = 0.7
    forget: float = 0.02
    source = (
        "Quantize-Sample-and-Verify, arXiv 2507.00605 (not verified: beyond the abstract, its text could not be had; "
        "how precision lowers acceptance, and the defaults, are ours)"
    )
    group = "link"
    is_folded = True
    grid = MappingProxyType({"max_draft": (4, 8, 12), "top": (8, 32), "forget": (0.02, 0.1)})
    required_capability = Capability.TREES
    own_distributions = True

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft", "top")
        self.require_share("initial_acceptance", "forget")
        parts = self.levels.split("-")
        valid = all(part.isdecimal() and int(part) for part in parts) and len(set(parts)) == len(
            parts
        )
        require(
            valid,
            f"adaptive-quantised: levels must be numbers from 1 on, as in 10-100, not {self.levels}",
        )

    @property
    def submits_trees(self) -> bool:
        return False

    def policy_with(self, latencies: Latencies) -> Policy:
        return _AdaptivePolicy(self, latencies)


class DraftPlan(NamedTuple):
    """A draft length, the levels of its distributions, and the expected tokens per second of the
    batch.
    """

    length: int
    levels: int
    speed: float


class _AdaptivePolicy(SparsePolicy):
    def __init__(self, options: AdaptiveQuantised, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.choices = [int(part) for part in options.levels.split("-")]
        super().__init__(k=1, top=options.top, levels=max(self.choices))
        self.acceptance = AcceptanceRate(options.initial_acceptance, options.forget)
        self.distances = dict.fromkeys(self.choices, 0.0)
        """By levels, the mean total variation between the draft model's distribution and the
        rounded one.
        """
        self.used_distance = 0.0
        """The same mean over the levels that were used: the acceptance rate holds for these."""
        self.vocabulary = 0
        """The number of tokens of the vocabulary; 0 before the first distribution."""

    def draft(self, drafter: "Drafter") -> None:
        best = max(self.plans(drafter.drafts), key=lambda plan: plan.speed)
        self.k = best.length
        self.levels = best.levels
        super().draft(drafter)

    def plans(self, drafts: "Sequence[Draft]") -> list[DraftPlan]:
        """Return every choice of length and levels with its expected speed, short drafts and few
        levels first.
        """
        return [
            DraftPlan(length, levels, self._speed(drafts, length, levels))
            for length in range(1, self.options.max_draft + 1)
            for levels in sorted(self.choices)
        ]

    def expected_acceptance(self, levels: int) -> float:
        """Return the acceptance rate of tokens that are drawn with these levels."""
        if self.greedy:
            return self.acceptance.value
        return min(
            1.0, max(0.0, self.acceptance.value + self.used_distance - self.distances[levels])
        )

    def rounded(self, probabilities: "Tensor") -> "Tensor":
        self.vocabulary = len(probabilities)
        drawn_from = probabilities
        for levels in self.choices:
            candidate = quantised(probabilities, self.top, levels)
            distance = float((candidate - probabilities).abs().sum()) / 2
            self.distances[levels] += ROUNDING_EMA * (distance - self.distances[levels])
            if levels == self.levels:
                self.used_distance += ROUNDING_EMA * (distance - self.used_distance)
                drawn_from = candidate
        return drawn_from

    def expects(self, draft: "Draft", nodes: "Sequence[int]") -> float:
        return expected_accepted([self.expected_acceptance(self.levels)] * len(nodes))

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        self.acceptance.learn(verdicts)

    def _speed(self, drafts: "Sequence[Draft]", length: int, levels: int) -> float:
        expected = len(drafts) * expected_tokens(self.expected_acceptance(levels), length)
        return expected / round_s(self._with_payload(levels), drafts, length)

    def _with_payload(self, levels: int) -> Latencies:
        """Return the latencies with the bits of a distribution on the way up of every drafted
        token.
        """
        link = self.latencies.link
        if link is None or self.greedy or not self.vocabulary:
            return self.latencies
        own_bytes = payload_bits(self.vocabulary, self.top, levels) / 8
        return self.latencies._replace(link=replace(link, up_bytes=link.up_bytes + own_bytes))
