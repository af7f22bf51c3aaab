"""One draft length for the whole batch, by the recent acceptance of each position and the time that
it takes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Latencies, Policy, methods, require
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import round_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("sglang-throughput")
@dataclass(frozen=True)
class SGLangThroughput(LatencyAware):
    """Draft the number of tokens with the most committed tokens per second by recent rounds; it
    starts at `steps`.

    The run keeps, for each position, the share of requests that had it accepted in each of the last `window` rounds
    that drafted it. Shares of deeper positions are extrapolated. The length, 1 to `max_draft`, is decided every
    `interval` rounds once the windows of all drafted positions are full; windows of positions that are no longer
    drafted are emptied. Of a single drafted position it is assumed that acceptance does not depend on the position; the
    source carries the share itself forward, and tries a list of candidate lengths instead of all.

    As published the newest figures decide. Where the link is seen, a shorter length has to have
    been faster by three standard errors of the rounds in the windows, since with few requests it
    often seems so by chance.
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
        require(
            fits,
            f"sglang-throughput: steps must lie in 1..max_draft, not {self.steps} of {self.max_draft}",
        )
        self.require_at_least(1, "window", "interval")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _SGLangThroughputPolicy(self, latencies)


class _SGLangThroughputPolicy(Policy):
    def __init__(self, options: SGLangThroughput, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.steps = options.steps
        self.rounds = 0
        self.windows: list[deque[float]] = [
            deque(maxlen=options.window) for _ in range(options.max_draft)
        ]

    def draft(self, drafter: "Drafter") -> None:
        active = self.windows[: self.steps]
        full = all(len(window) == self.options.window for window in active)
        if full and self.rounds % self.options.interval == 0:
            self._decide(drafter.drafts)
        self.rounds += 1
        for _ in range(self.steps):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for position, window in enumerate(self.windows[: self.steps]):
            accepted = [
                len(verdict.path) > position
                for verdict in verdicts
                if len(verdict.submitted) > position
            ]
            if accepted:
                window.append(fmean(accepted))

    def acceptance_shares(self) -> list[float]:
        """Return the share of requests that have each position accepted, measured or
        extrapolated.
        """
        measured = [fmean(window) for window in self.windows[: self.steps]]
        first = measured[0]
        last = measured[-1]
        count = len(measured)
        # One position alone does not show how shares fall: assume that acceptance does not depend
        # on the position.
        fall = first if count == 1 else (last / first) ** (1 / (count - 1)) if first else 0.0
        beyond = range(1, self.options.max_draft - count + 1)
        return [*measured, *(last * min(fall, 1.0) ** step for step in beyond)]

    def _decide(self, drafts: "Sequence[Draft]") -> None:
        shares = self.acceptance_shares()
        seconds = [round_s(self.latencies, drafts, steps) for steps in range(1, len(shares) + 1)]
        rates = [
            (1 + sum(shares[:steps])) / seconds[steps - 1] for steps in range(1, len(shares) + 1)
        ]
        best = 1 + rates.index(max(rates))
        if self.latencies.link is None or best > self.steps or self._is_faster(best, seconds):
            self.steps = best
        for window in self.windows[self.steps :]:
            window.clear()

    def _is_faster(self, steps: int, seconds: Sequence[float]) -> bool:
        """Return whether drafts of `steps` tokens were faster than the present ones by three
        standard errors.
        """
        rounds = list(zip(*self.windows[: self.steps], strict=True))
        gains = [
            (1 + sum(shares[:steps])) / seconds[steps - 1]
            - (1 + sum(shares)) / seconds[self.steps - 1]
            for shares in rounds
        ]
        return fmean(gains) > 3 * stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else True
