"""The classifiers tuned for one deployment, and what the tuning is worth there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from specbench_kit.predictors.thresholds import DeploymentKey, TunedThreshold
from specbench_kit.studies.training.contenders import Contender, ContenderTuner, TrainedFamily
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.pairing import PairedSums, Sums
from specbench_kit.studies.training.rounds import PlayedRounds, play


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
        tuner, timing = self.tuner, self.tuner.timing
        best, fixed = self.fastest([family]), tuner.best_fixed()
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
