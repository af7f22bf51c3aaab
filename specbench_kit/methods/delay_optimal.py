"""The draft length with the least expected time per token at a known delay, in closed form."""

from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Latencies, Policy, methods
from specbench_kit.methods.chosen_length import AcceptanceRate, ChosenLengthPolicy, expected_tokens
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import draft_s, link_s, verify_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("delay-optimal")
@dataclass(frozen=True)
class DelayOptimal(LatencyAware):
    """Draft the number of tokens, 1 to `k_max`, with the least expected time per token at the
    link's mean delay.

    The time of a round is the delay of both messages, a part per drafted and a part per verified token. `acceptance` is
    the probability that a drafted token is accepted if all before it are; by default it is learned, from
    `initial_acceptance` on, where each round forgets the share `forget` of the earlier ones. The published formula has
    no fixed part of a verification: here it belongs to the delay. The bytes of a token belong to its parts.
    """

    k_max: int = 20
    acceptance: float | None = None
    initial_acceptance: float = 0.7
    forget: float = 0.02
    source = "the known-delay optimum of UCB-SpecStop, arXiv 2606.20591 (how to learn the acceptance rate is ours)"
    group = "link"
    grid = MappingProxyType(
        {"k_max": (4, 6, 8), "initial_acceptance": (0.5, 0.7, 0.8), "forget": (0.02, 0.1)}
    )
    draft_limit = "k_max"
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        self.require_at_least(1, "k_max")
        self.require_share(
            "initial_acceptance", "forget", *(["acceptance"] if self.acceptance is not None else [])
        )

    def policy_with(self, latencies: Latencies) -> Policy:
        return _DelayOptimalPolicy(self, latencies)


@dataclass(frozen=True, slots=True)
class RoundParts:
    """The seconds of a round of k tokens: 2 `delay_s` + k (`draft_s` + `verify_s`) + `verify_s`."""

    delay_s: float
    """Seconds of one of the two messages; the fixed part of a verification is spread over both."""
    draft_s: float
    verify_s: float

    def per_token_s(self, length: int, acceptance: float) -> float:
        """Return the expected seconds per committed token of drafts of this length."""
        round_s = length * (self.draft_s + self.verify_s) + 2 * self.delay_s + self.verify_s
        return round_s / expected_tokens(acceptance, length)

    def critical_delay_s(self, acceptance: float) -> float:
        """Return the delay up to which one token is the best length."""
        if not acceptance:
            return inf
        both_s = self.draft_s + self.verify_s
        return both_s * (1 + acceptance) / (2 * acceptance**2) - (both_s + self.verify_s) / 2

    def best_length(self, acceptance: float, longest: int) -> int:
        """Return the length from 1 to `longest` with the least time per token, the shortest of
        several.
        """
        if self.delay_s <= self.critical_delay_s(acceptance):
            return 1
        return min(range(1, longest + 1), key=lambda length: self.per_token_s(length, acceptance))


class _DelayOptimalPolicy(ChosenLengthPolicy):
    def __init__(self, options: DelayOptimal, latencies: Latencies) -> None:
        given = options.acceptance
        super().__init__(
            AcceptanceRate(options.initial_acceptance if given is None else given, options.forget)
        )
        self.options = options
        self.latencies = latencies

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        if self.options.acceptance is None:
            super().observe(verdicts)

    def length_for(self, drafter: "Drafter") -> int:
        return self.parts(drafter.drafts).best_length(self.acceptance.value, self.options.k_max)

    def parts(self, drafts: "Sequence[Draft]") -> RoundParts:
        """Return the parts of a round of these requests, where the parts per token are means over
        `k_max` tokens.
        """
        longest = self.options.k_max
        requests = len(drafts)
        plain_s, whole_s = (
            verify_s(self.latencies, drafts, [length] * requests) for length in (0, longest)
        )
        empty_s, full_s = (link_s(self.latencies, requests, length) for length in (0, longest))
        token_s = (whole_s - plain_s + full_s - empty_s) / longest
        return RoundParts(
            delay_s=(empty_s + plain_s - token_s) / 2,
            draft_s=draft_s(self.latencies, drafts, longest) / longest,
            verify_s=token_s,
        )
