"""The probability that a drafted token is accepted, from one feature: a logistic regression fitted step by step."""

from dataclasses import dataclass, field
from math import tanh


@dataclass
class _Sums:
    """First and second derivatives of the log-likelihood over the tokens of one position."""

    count: int = 0
    slope: float = 0.0
    intercept: float = 0.0
    slope_slope: float = 0.0
    slope_intercept: float = 0.0
    intercept_intercept: float = 0.0


@dataclass
class AcceptanceFit:
    """The model sigmoid(slope x feature + intercept of the position), fitted by damped Newton steps with a ridge `l2`.

    A step over n tokens is scaled by n / (n + `damping`). A step that would make the slope negative leaves it as it is
    (vLLM).
    """

    positions: int
    damping: float
    l2: float
    slope: float = 0.0
    intercepts: list[float] = field(default_factory=list)
    refits: int = 0

    def __post_init__(self) -> None:
        self.intercepts = self.intercepts or [1.5] * self.positions
        self._clear()

    def chance(self, position: int, feature: float) -> float:
        """Return the acceptance probability of a token at a position, from 0, if the tokens before it are accepted."""
        # The tanh form of the sigmoid overflows nowhere.
        return (1 + tanh((self.slope * feature + self.intercepts[position]) / 2)) / 2

    def add(self, position: int, feature: float, accepted: bool) -> None:
        """Add the outcome of a verified token whose predecessors were all accepted."""
        chance, sums = self.chance(position, feature), self.sums[position]
        residual, weight = accepted - chance, chance * (1 - chance)
        sums.count += 1
        sums.slope += residual * feature
        sums.intercept += residual
        sums.slope_slope += weight * feature * feature
        sums.slope_intercept += weight * feature
        sums.intercept_intercept += weight

    def refit(self) -> None:
        """Take one Newton step on the tokens that were added since the last refit, then discard them."""
        # The intercepts are eliminated from the Newton system first: each depends on the slope alone.
        curvature = self.l2 + sum(s.slope_slope - s.slope_intercept**2 / self._ridged(s) for s in self.sums)
        gradient = sum(s.slope - s.slope_intercept * s.intercept / self._ridged(s) for s in self.sums)
        slope_step = self._damped(sum(s.count for s in self.sums)) * gradient / curvature
        slope_step = slope_step if self.slope + slope_step >= 0 else 0.0
        self.slope += slope_step
        for position, sums in enumerate(self.sums):
            step = (sums.intercept - sums.slope_intercept * slope_step) / self._ridged(sums)
            self.intercepts[position] += self._damped(sums.count) * step
        self.refits += 1
        self._clear()

    def _ridged(self, sums: _Sums) -> float:
        return sums.intercept_intercept + self.l2

    def _damped(self, count: int) -> float:
        return count / (count + self.damping) if count else 0.0

    def _clear(self) -> None:
        self.sums = [_Sums() for _ in range(self.positions)]
