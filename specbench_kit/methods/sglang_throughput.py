"""One draft length for the whole batch, by how often each position was reached lately and what it costs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Latencies, Policy, methods, require
from specbench_kit.methods.latency_aware import LatencyAware, round_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("sglang-throughput")
@dataclass(frozen=True)
class SGLangThroughput(LatencyAware):
    """Draft the number of tokens that yields the most per second by recent rounds; `steps` at first.

    Kept for the run: for each position the share of requests that had it accepted in each of the last `window` rounds
    that drafted it; deeper positions go on falling as the known ones do. Decided every `interval` rounds once all
    windows in use are full; those of positions that are no longer drafted are emptied.
    """

    steps: int = 3
    max_draft: int = 8
    window: int = 20
    interval: int = 10
    source = "SGLang pull request 28045"
    grid = MappingProxyType({"steps": (2, 3, 5), "window": (10, 20, 40), "interval": (5, 10)})
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        fits = 1 <= self.steps <= self.max_draft
        require(fits, f"sglang-throughput: steps must lie in 1..max_draft, not {self.steps} of {self.max_draft}")
        for name in ("window", "interval"):
            require(getattr(self, name) >= 1, f"sglang-throughput: {name} must be at least 1")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _SGLangThroughputPolicy(self, latencies)


class _SGLangThroughputPolicy(Policy):
    def __init__(self, options: SGLangThroughput, latencies: Latencies) -> None:
        self.options, self.latencies = options, latencies
        self.steps, self.rounds = options.steps, 0
        self.windows: list[deque[float]] = [deque(maxlen=options.window) for _ in range(options.max_draft)]

    def draft(self, drafter: "Drafter") -> None:
        active = self.windows[: self.steps]
        full = all(len(window) == self.options.window for window in active)
        if full and self.rounds % self.options.interval == 0:
            self._decide(drafter.drafts)
        self.rounds += 1
        for _ in range(self.steps):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for place, window in enumerate(self.windows[: self.steps]):
            tried = [len(verdict.path) > place for verdict in verdicts if len(verdict.submitted) > place]
            if tried:
                window.append(fmean(tried))

    def reached(self) -> list[float]:
        """The share of requests that has each position accepted, known or extrapolated."""
        known = [fmean(window) for window in self.windows[: self.steps]]
        first, last, count = known[0], known[-1], len(known)
        # one position alone says nothing of the fall: taken as acceptance that does not depend on the place
        fall = first if count == 1 else (last / first) ** (1 / (count - 1)) if first else 0.0
        beyond = range(1, self.options.max_draft - count + 1)
        return [*known, *(last * min(fall, 1.0) ** step for step in beyond)]

    def _decide(self, drafts: "Sequence[Draft]") -> None:
        reached = self.reached()
        rates = [
            (1 + sum(reached[:steps])) / round_s(self.latencies, drafts, steps) for steps in range(1, len(reached) + 1)
        ]
        self.steps = 1 + rates.index(max(rates))
        for window in self.windows[self.steps :]:
            window.clear()
