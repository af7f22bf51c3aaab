"""A draft length that follows how many drafts were accepted lately."""

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
"""Draft lengths by the smallest batch that they are for."""


@methods.register("sglang-ema")
@dataclass(frozen=True)
class SGLangEma(Method):
    """Move the draft length among a few candidates after a moving average of accepted drafts; `steps` at first.

    Kept for the run, apart for batches of 1-7, 8-31, 32-63 and more: length, average (weight `alpha` of the newest
    round) and rounds. After `warmup` rounds, every `interval`-th moves down while the average is half a token and
    `down` below the next shorter candidate, or up while it is less than half a token and `up` short of the present one:
    what lies beyond the draft is never seen. Without a draft nothing is learned, so the next candidate is tried.
    `ceiling` above 0 caps a length that does not rise at that multiple of the average.
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
        {"steps": (1, 3, 5), "alpha": (0.1, 0.2, 0.4), "down": (-0.25, 0.0, 0.25), "interval": (2, 5)}
    )
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("interval", 1)):
            value = getattr(self, name)
            require(value >= least, f"sglang-ema: {name} must be at least {least}, not {value}")
        require(0 < self.alpha <= 1, f"sglang-ema: alpha must lie above 0 and up to 1, not {self.alpha}")
        require(self.ceiling >= 0, f"sglang-ema: ceiling must not be negative, but is {self.ceiling}")

    def policy(self) -> Policy:
        return _SGLangEmaPolicy(self)


class Slot:
    """What is kept for batches of some sizes."""

    def __init__(self, options: SGLangEma, smallest: int) -> None:
        self.options, self.candidates = options, CANDIDATES[smallest]
        known = options.steps in self.candidates
        self.steps = options.steps if known else self.candidates[len(self.candidates) // 2]
        self.down = options.down if smallest == 1 else 0.0
        self.average = max(0.0, self.steps - 1.0)
        self.rounds = 0

    def learn(self, accepted: float) -> None:
        """Take in a round's mean of accepted drafts, and move if it is time."""
        if self.steps:
            self.average += self.options.alpha * (accepted - self.average)
        self.rounds += 1
        since = self.rounds - self.options.warmup
        if since >= 0 and since % self.options.interval == 0:
            self.steps = self._capped(self._target())

    def _target(self) -> int:
        place, last = self.candidates.index(self.steps), len(self.candidates) - 1
        if not self.steps:
            return self.candidates[min(1, last)]
        while place > 0 and self.average <= self._lower(self.candidates[place - 1]):
            place -= 1
        if self.candidates[place] == self.steps:
            while place < last and self.average > self.candidates[place] - 0.5 + self.options.up:
                place += 1
        return self.candidates[place]

    def _lower(self, shorter: int) -> float:
        return (shorter - 0.5 if shorter else 0.5) + self.down

    def _capped(self, target: int) -> int:
        if not self.options.ceiling or target > self.steps:
            return target
        most = max(1, ceil(self.options.ceiling * self.average))
        return max((one for one in self.candidates if one <= min(target, most)), default=target)


class _SGLangEmaPolicy(Policy):
    def __init__(self, options: SGLangEma) -> None:
        self.slots = {smallest: Slot(options, smallest) for smallest in CANDIDATES}

    def slot(self, batch: int) -> Slot:
        """The one for a batch of this size."""
        bounds = list(CANDIDATES)
        return self.slots[bounds[bisect_right(bounds, batch) - 1]]

    def draft(self, drafter: "Drafter") -> None:
        for _ in range(self.slot(len(drafter.drafts)).steps):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        self.slot(len(verdicts)).learn(fmean(len(verdict.path) for verdict in verdicts))
