"""The chance that a drafted token is accepted, as one feature tells it: a logistic regression fitted step by step."""

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
    """sigmoid(slope x feature + the position's intercept); each refit is a damped Newton step with a ridge `l2`.

    A step over n tokens counts n / (n + `damping`); the slope stays where it would become negative (vLLM).
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

    def chance(self, place: int, feature: float) -> float:
        """Of acceptance at a position, 0 for the first, of a token whose forerunners were accepted."""
        return (1 + tanh((self.slope * feature + self.intercepts[place]) / 2)) / 2

    def take(self, place: int, feature: float, accepted: bool) -> None:
        """Learn what became of a token that was verified after its forerunners were accepted."""
        chance, sums = self.chance(place, feature), self.sums[place]
        missing, weight = accepted - chance, chance * (1 - chance)
        sums.count += 1
        sums.slope += missing * feature
        sums.intercept += missing
        sums.slope_slope += weight * feature * feature
        sums.slope_intercept += weight * feature
        sums.intercept_intercept += weight

    def refit(self) -> None:
        """One step on what was learned since the last one, which is then forgotten."""
        curvature = self.l2 + sum(s.slope_slope - s.slope_intercept**2 / self._ridged(s) for s in self.sums)
        gradient = sum(s.slope - s.slope_intercept * s.intercept / self._ridged(s) for s in self.sums)
        moved = self._damped(sum(s.count for s in self.sums)) * gradient / curvature
        moved = moved if self.slope + moved >= 0 else 0.0
        self.slope += moved
        for place, sums in enumerate(self.sums):
            step = (sums.intercept - sums.slope_intercept * moved) / self._ridged(sums)
            self.intercepts[place] += self._damped(sums.count) * step
        self.refits += 1
        self._clear()

    def _ridged(self, sums: _Sums) -> float:
        return sums.intercept_intercept + self.l2

    def _damped(self, count: int) -> float:
        return count / (count + self.damping) if count else 0.0

    def _clear(self) -> None:
        self.sums = [_Sums() for _ in range(self.positions)]
