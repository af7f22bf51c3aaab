"""A draft length that follows a moving average of accepted drafts."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.verification import Verdict

CANDIDATES = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}
"""Candidate draft lengths, by the smallest batch size that they are for."""


@methods.register("sglang-ema")
@dataclass(frozen=True)
class SGLangEma(Method):
    """Move the draft length among a few candidates by a moving average of the accepted tokens; it
    starts at `steps`.

    Batches of 1-7, 8-31, 32-63 and more requests each have their own length, average (the newest round has the weight
    `alpha`) and number of rounds, kept for the run. The length may change in every `interval`-th round after the first
    `warmup` rounds. It moves down while the average is at most half a token less than the next shorter candidate, plus
    `down` (negative by default). It moves up while the average is more than the present length less half a token, plus
    `up`, since tokens beyond the draft are never observed. Without a draft there is nothing to learn, so the next
    candidate is tried. A `ceiling` above 0 caps a length that does not rise at that multiple of the average.
    """

    steps: int = 3
    alpha: float = 0.2
    warmup: int = 10
    interval: int = 5
    up: float = 0.0
    down: float = -0.25
    ceiling: float = 0.0
    source = "SGLang adaptive_spec_params"
    group = "bandit"
    grid = MappingProxyType(
        {
            "steps": (1, 3, 5),
            "alpha": (0.1, 0.2, 0.4),
            "down": (-0.25, 0.0, 0.25),
            "interval": (2, 5),
        }
    )
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("interval", 1)):
            value = getattr(self, name)
            require(value >= least, f"sglang-ema: {name} must be at least {least}, not {value}")
        require(
            0 < self.alpha <= 1, f"sglang-ema: alpha must lie above 0 and up to 1, not {self.alpha}"
        )
        require(
            self.ceiling >= 0, f"sglang-ema: ceiling must not be negative, but is {self.ceiling}"
        )

    def policy(self) -> Policy:
        return _SGLangEmaPolicy(self)


class LengthState:
    """The draft length, the average and the number of rounds for a range of batch sizes."""

    def __init__(self, options: SGLangEma, smallest: int) -> None:
        self.options = options
        self.candidates = CANDIDATES[smallest]
        is_candidate = options.steps in self.candidates
        self.steps = options.steps if is_candidate else self.candidates[len(self.candidates) // 2]
        self.down = options.down if smallest == 1 else 0.0
        self.average = max(0.0, self.steps - 1.0)
        self.rounds = 0

    def learn(self, accepted: float) -> None:
        """Add a round's mean number of accepted tokens, and move the length if it is time."""
        if self.steps:
            self.average += self.options.alpha * (accepted - self.average)
        self.rounds += 1
        since = self.rounds - self.options.warmup
        if since > 0 and since % self.options.interval == 0:
            self.steps = self._next_length()

    def _next_length(self) -> int:
        index = self.candidates.index(self.steps)
        last = len(self.candidates) - 1
        if not self.steps:
            return self.candidates[min(1, last)]
        while index > 0:
            shorter = self.candidates[index - 1]
            if self.average > (shorter - 0.5 if shorter else 0.5) + self.down:
                break
            index -= 1
        if self.candidates[index] == self.steps:
            while index < last and self.average > self.candidates[index] - 0.5 + self.options.up:
                index += 1
        target = self.candidates[index]
        if not self.options.ceiling or target > self.steps:
            return target
        cap = min(target, max(1, ceil(self.options.ceiling * self.average)))
        return max((length for length in self.candidates if length <= cap), default=target)


class _SGLangEmaPolicy(Policy):
    def __init__(self, options: SGLangEma) -> None:
        self.states = {smallest: LengthState(options, smallest) for smallest in CANDIDATES}

    def state(self, batch: int) -> LengthState:
        """Return the state for a batch of this size."""
        bounds = list(CANDIDATES)
        return self.states[bounds[bisect_right(bounds, batch) - 1]]

    def draft(self, drafter: "Drafter") -> None:
        for _ in range(self.state(len(drafter.drafts)).steps):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        self.state(len(verdicts)).learn(fmean(len(verdict.path) for verdict in verdicts))
