"""One draft length for the whole batch: the one that promises the most tokens per second."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Capability, Latencies, Policy, methods, require
from specbench_kit.methods.latency_aware import LatencyAware, round_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

PROBE = 10
"""Of decisions not to draft, every so many-th drafts one token, or nothing would be learned any more."""


@methods.register("goodput")
@dataclass(frozen=True)
class Goodput(LatencyAware):
    """Draft as many tokens as promise the most tokens per second of the batch; decided every `interval` rounds.

    Lengths are tried upwards from 0, which counts `bias` times, until the promise falls. Kept for the run: one
    acceptance rate, a moving average (`ema`) over accepted of tested tokens, those after a rejection not counted.
    """

    max_draft: int = 8
    initial_acceptance: float = 0.7
    ema: float = 0.15
    interval: int = 20
    bias: float = 1.1
    source = "SmartSpec and TurboSpec, arXiv 2406.14066"
    reported_result = "request latency down by up to 3.2 times against no speculation"
    grid = MappingProxyType(
        {"max_draft": (4, 8), "initial_acceptance": (0.5, 0.7, 0.8), "interval": (5, 20), "bias": (1.0, 1.1)}
    )
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        require(self.max_draft >= 1, f"goodput: max_draft must be at least 1, not {self.max_draft}")
        require(self.interval >= 1, f"goodput: interval must be at least 1, not {self.interval}")
        require(self.bias > 0, f"goodput: bias must be above 0, not {self.bias}")
        for name in ("initial_acceptance", "ema"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"goodput: {name} must lie in 0..1, not {value}")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _GoodputPolicy(self, latencies)


class _GoodputPolicy(Policy):
    def __init__(self, options: Goodput, latencies: Latencies) -> None:
        self.options, self.latencies = options, latencies
        self.acceptance = self.believed = options.initial_acceptance
        self.length, self.rounds, self.idle_decisions = 0, 0, 0

    def draft(self, drafter: "Drafter") -> None:
        if self.rounds % self.options.interval == 0:
            self.length = self._decide(drafter.drafts)
        self.rounds += 1
        self.believed = self.acceptance
        for _ in range(self.length):
            drafter.extend(drafter.drafts)

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted([self.believed] * len(nodes))

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        accepted = sum(len(verdict.path) for verdict in verdicts)
        rejected = sum(len(verdict.path) < len(verdict.submitted) for verdict in verdicts)
        if accepted + rejected:
            seen = accepted / (accepted + rejected)
            self.acceptance += self.options.ema * (seen - self.acceptance)

    def promises(self, drafts: "Sequence[Draft]") -> list[float]:
        """Tokens per second by draft length, from 0 up to the first fall."""
        found: list[float] = []
        expected = 0.0
        for length in range(self.options.max_draft + 1):
            expected += len(drafts) * self.acceptance**length
            weight = 1.0 if length else self.options.bias
            found.append(weight * expected / round_s(self.latencies, drafts, length))
            if length and found[-1] < found[-2]:
                break
        return found

    def _decide(self, drafts: "Sequence[Draft]") -> int:
        promises = self.promises(drafts)
        best = promises.index(max(promises))
        if best:
            return best
        self.idle_decisions += 1
        return 1 if self.idle_decisions % PROBE == 0 else 0
