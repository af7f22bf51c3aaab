"""The classifiers tuned for one deployment, and what the tuning is worth there.

Also here: differences between contenders on the same prompts, with paired intervals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.metrics.statistics import Interval, interval_of_estimate
from specbench_kit.predictors.thresholds import DeploymentKey, TunedThreshold
from specbench_kit.studies.training.contenders import Contender, ContenderTuner, TrainedFamily
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.rounds import PlayedRounds, play

Sums = NDArray[np.float64]
"""Sums over all prompts but one, [prompts], or one sum over all prompts, [1]."""
SumOf = Callable[[str, str], Sums]
"""Returns the sums of a column, by the contender's name and the column's name."""


@dataclass(frozen=True, slots=True)
class PairedEstimate:
    """A quantity and its 95% interval; None if it is undefined, or if there are too few prompts for an interval."""

    value: float | None
    interval: Interval | None


class PairedSums:
    """Sums over the prompts that all contenders share, and over all of these prompts but one (the jackknife)."""

    def __init__(self, columns: Mapping[tuple[str, str], ArrayLike]) -> None:
        self._index = {key: index for index, key in enumerate(columns)}
        table = np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
        self._sums = table.sum(axis=0, keepdims=True)
        self._without = self._sums - table
        total = np.where(self._sums > 0, self._sums, 1)
        self._weight = (table / total).mean(axis=1)

    def estimate(self, quantity: Callable[[SumOf], Sums]) -> PairedEstimate:
        """Return a quantity of sums; it is undefined if it is not finite."""

        def evaluate(sums: Sums) -> Sums:
            return quantity(lambda contender, column: sums[:, self._index[contender, column]])

        with np.errstate(divide="ignore", invalid="ignore"):
            (value,), without = evaluate(self._sums), evaluate(self._without)
        if not np.isfinite(value):
            return PairedEstimate(None, None)
        return PairedEstimate(float(value), interval_of_estimate(float(value), without, self._weight))


@dataclass(frozen=True)
class DeploymentTuning:
    """The trained families with thresholds and longest drafts chosen for the time of one deployment."""

    key: DeploymentKey
    tuner: ContenderTuner
    trained: Mapping[str, TrainedFamily]

    @cached_property
    def by_rule(self) -> Mapping[str, tuple[Contender, ...]]:
        """Return every family under every threshold rule, the rule that WISP published first."""
        return {family: self.tuner.classifiers(trained) for family, trained in self.trained.items()}

    def fastest(self, families: Sequence[str]) -> Contender:
        """Return the fastest classifier of these families under any rule, on the validation offsets."""
        return max((contender for family in families for contender in self.by_rule[family]), key=self.tuner.speed)

    def thresholds(self, family: str) -> Iterator[TunedThreshold]:
        """Yield the chosen threshold of a family for each rule."""
        for contender in self.by_rule[family]:
            judge = contender.judge
            assert judge is not None
            yield TunedThreshold(*self.key, *judge.rule, threshold=judge.threshold, max_draft=judge.longest)

    def worth(self, family: str, test: Offsets) -> dict[str, object]:
        """Return the speed of a family over the best fixed length on the test offsets, with the costs involved."""
        tuner = self.tuner
        timing = self.tuner.timing
        best = self.fastest([family])
        fixed = tuner.best_fixed()
        contenders = {
            "published": self.by_rule[family][0],
            "best": best,
            "confidence": tuner.best_confidence(),
            "oracle": tuner.oracle,
        }
        sums = {(name, "s"): self._seconds(contender, test) for name, contender in contenders.items()}
        paired = PairedSums({**sums, ("fixed", "s"): self._seconds(fixed, test)})

        def describe(name: str, contender: Contender) -> dict[str, object]:
            judge = contender.judge
            chosen = {"threshold": judge.threshold, "longest": judge.longest} if judge else {}
            speedup = paired.estimate(lambda get: get("fixed", "s") / get(name, "s"))
            return {"name": contender.name, **chosen, **asdict(speedup)}

        return {
            "deployment": self.key.name,
            "fixed": fixed.name,
            **{name: describe(name, contender) for name, contender in contenders.items()},
            "decision_s": best.policy_s,
            "decision_origin": timing.origin,
            "draft_s": timing.draft_s,
            "round_s": timing.verify_s[0] + (timing.link_s[0] if timing.link_s else 0.0),
        }

    def _seconds(self, contender: Contender, test: Offsets) -> Sums:
        rounds = play(test, contender.plan(test))
        return sums_by_prompt(test, rounds, contender.seconds(rounds, self.tuner.timing))


def sums_by_prompt(offsets: Offsets, rounds: PlayedRounds, values: ArrayLike) -> Sums:
    """Return the sums of one value per round, [prompts]."""
    _, prompt = np.unique(offsets.conversation[rounds.offset], return_inverse=True)
    return np.bincount(prompt, weights=np.asarray(values)).astype(np.float64)
