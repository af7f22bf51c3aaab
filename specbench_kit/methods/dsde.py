"""A draft length for each request by how steadily the draft model agrees with the target, capped by
the batch's mean.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import expm1, inf
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.methods.base import (
    Capability,
    Environment,
    Group,
    Method,
    Policy,
    methods,
    require,
)

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("dsde")
@dataclass(frozen=True)
class Dsde(Method):
    """Draft fewer tokens for a request the more its KL divergence, draft from target, has grown and
    varies, and no more than the batch does on average.

    The first `calibration` rounds of the run draft `max_draft` tokens; from them come the longest
    accepted draft and the mean and largest divergence, and with these the longest length. A
    request's length falls from there to `min_draft` by exp(2 m) - 1, where m is the mean divergence
    of its last verification, times the variance of its last `short` divergences over that of its
    last `long`; a divergence weighs `decay` times as much as the next newer one. No request drafts
    more than the mean of all lengths, so that none waits for one that drafts far.

    The calibration's rounds, `max_draft`, the direction of the divergence and rounding to the
    nearest length are ours; a request's first draft is as long as possible.
    """

    max_draft: int = 10
    min_draft: int = 2
    calibration: int = 10
    short: int = 10
    long: int = 30
    decay: float = 0.85
    cap: bool = True
    source = "DSDE, arXiv 2509.01083"
    reported_result = "2.75 times autoregressive decoding (Llama-3.1-70B, Llama-3.2-1B, greedy)"
    group: ClassVar[Group] = "bandit"
    grid = MappingProxyType({"max_draft": (6, 8, 10), "decay": (0.85, 0.95), "cap": (True, False)})
    # The divergence is between whole distributions, of which a chain needs one a token.
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        self.require_at_least(1, "min_draft", "calibration", "short")
        require(
            self.min_draft <= self.max_draft,
            f"dsde: min_draft must be at most max_draft, not {self.min_draft} of {self.max_draft}",
        )
        require(
            self.short <= self.long,
            f"dsde: the short window must be at most the long one, not {self.short} of {self.long}",
        )
        self.require_share("decay")

    @property
    def submits_trees(self) -> bool:
        return False

    @property
    def reads_divergences(self) -> bool:
        return True

    def prepare(self, environment: Environment) -> Method:
        require(
            not environment.served,
            "dsde: servers do not send the target's distributions: leave out --server",
        )
        return self

    def policy(self) -> Policy:
        return _DsdePolicy(self)


def weighted_variance(newest_first: Sequence[float], decay: float) -> float:
    """Return the variance of values, each of which weighs `decay` times as much as the one before
    it.
    """
    weights = [decay**age for age in range(len(newest_first))]
    total = sum(weights)
    mean = sum(map(float.__mul__, weights, newest_first)) / total
    return (
        sum(
            weight * (value - mean) ** 2
            for weight, value in zip(weights, newest_first, strict=True)
        )
        / total
    )


@dataclass
class Stability:
    """The divergences of a request, the newest first, and the mean of its last verification."""

    divergences: deque[float]
    last_mean: float = 0.0

    def add(self, divergences: Sequence[float]) -> None:
        """Add those of a verification, in the order of its tokens."""
        self.divergences.extendleft(divergences)
        self.last_mean = fmean(divergences)

    def penalty(self, short: int, decay: float) -> float:
        """Return the share of the way from the longest to the shortest draft; it may exceed 1."""
        overall = weighted_variance(list(self.divergences), decay)
        recent = weighted_variance(list(islice(self.divergences, short)), decay)
        growth = recent / overall if overall else 1.0
        # Beyond 700 the exponential leaves the numbers, and the draft is shortest long before.
        return expm1(2 * min(self.last_mean, 300.0)) * growth


@dataclass
class _DsdePolicy(Policy):
    options: Dsde
    rounds: int = 0
    most_accepted: int = 0
    divergences: list[float] = field(default_factory=list)
    """Those of the calibration."""
    requests: dict[str, Stability] = field(default_factory=dict)

    def draft(self, drafter: "Drafter") -> None:
        wanted = self.lengths([draft.request_id for draft in drafter.drafts])
        for length in range(max(wanted, default=0)):
            growing = [
                draft for draft, most in zip(drafter.drafts, wanted, strict=True) if length < most
            ]
            drafter.extend(growing)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        calibrates = self.rounds < self.options.calibration
        self.rounds += 1
        for verdict in verdicts:
            if not verdict.divergences:
                continue
            name = verdict.draft.request_id
            if name not in self.requests:
                self.requests[name] = Stability(deque(maxlen=self.options.long))
            self.requests[name].add(verdict.divergences)
            if calibrates:
                self.most_accepted = max(self.most_accepted, len(verdict.path))
                self.divergences.extend(verdict.divergences)

    def forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    @property
    def longest(self) -> float:
        """The longest length that the calibration allows, at least the shortest one."""
        largest = max(self.divergences, default=0.0)
        spread = fmean(self.divergences) / largest if largest else 0.0
        return max(self.options.min_draft, self.most_accepted * (1 + spread))

    def predicted(self, name: str) -> float:
        """Return the length for a request by itself, not rounded."""
        least = self.options.min_draft
        stability = self.requests.get(name)
        if stability is None:
            return self.longest
        penalty = stability.penalty(self.options.short, self.options.decay)
        return least + max(0.0, 1 - penalty) * (self.longest - least)

    def lengths(self, names: Sequence[str]) -> list[int]:
        """Return the length of every request of the batch."""
        options = self.options
        if self.rounds < options.calibration:
            return [options.max_draft] * len(names)
        predicted = [self.predicted(name) for name in names]
        cap = fmean(predicted) if options.cap and predicted else inf
        return [min(options.max_draft, round(min(length, cap))) for length in predicted]
