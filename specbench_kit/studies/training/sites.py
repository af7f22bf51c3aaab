"""A place where a predictor is to run: what is chosen for it, and what that is worth there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.thresholds import DeploymentKey, TunedThreshold
from specbench_kit.studies.training.contenders import Contender, ContenderTuner, TrainedFamily
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.pairing import PairedSums, Sums
from specbench_kit.studies.training.rounds import RoundArrays, play

Fields = dict[str, Any]


@dataclass(frozen=True)
class DeploymentTuning:
    """A place, and the classifiers with thresholds and lengths chosen for its time."""

    place: DeploymentKey
    chooser: ContenderTuner
    trained: Mapping[str, TrainedFamily]

    @cached_property
    def by_rules(self) -> Mapping[str, tuple[Contender, ...]]:
        """Every family under every rule, WISP's first."""
        return {family: self.chooser.by_rules(trained) for family, trained in self.trained.items()}

    def fastest(self, *families: str) -> Contender:
        """Of these families' rules, on the validation offsets."""
        return max((one for family in families for one in self.by_rules[family]), key=self.chooser.speed)

    def points(self, family: str) -> Iterator[TunedThreshold]:
        """What was chosen for a family."""
        for one in self.by_rules[family]:
            assert one.judge is not None
            yield TunedThreshold(
                *self.place, *one.judge.rule, threshold=one.judge.threshold, max_draft=one.judge.longest
            )

    def worth(self, family: str, test: Offsets) -> Fields:
        """Speeds on prompts that nothing was chosen on, over the best fixed length, beside what they have to pay."""
        chooser, timing = self.chooser, self.chooser.timing
        published, best = self.by_rules[family][0], self.fastest(family)
        fixed, confidence = chooser.best_fixed(), chooser.best_confidence()
        rivals = {"published": published, "best": best, "confidence": confidence, "oracle": chooser.oracle}
        paired = PairedSums({(name, "s"): self._seconds(one, test) for name, one in {**rivals, "fixed": fixed}.items()})

        def over_fixed(name: str) -> Fields:
            return asdict(paired.estimate(lambda get: get("fixed", "s") / get(name, "s")))

        return {
            "deployment": self.place.name,
            "fixed": fixed.name,
            **{name: {"name": one.name, **_choice(one), **over_fixed(name)} for name, one in rivals.items()},
            "decision_s": best.policy_s,
            "decision_origin": timing.origin,
            "draft_s": timing.draft_s,
            "round_s": timing.verify_s[0] + (timing.link_s[0] if timing.link_s else 0.0),
        }

    def _seconds(self, contender: Contender, test: Offsets) -> Sums:
        rounds = play(test, contender.plan(test))
        return sums_by_prompt(test, rounds, contender.seconds(rounds, self.chooser.timing))


def _choice(one: Contender) -> Fields:
    return {"threshold": one.judge.threshold, "longest": one.judge.longest} if one.judge else {}


def sums_by_prompt(offsets: Offsets, rounds: RoundArrays, values: "NDArray[Any] | Sequence[float]") -> Sums:
    """Of what the rounds have, one number for each prompt."""
    _, place = np.unique(offsets.conversation[rounds.offset], return_inverse=True)
    return np.bincount(place, weights=values).astype(np.float64)
