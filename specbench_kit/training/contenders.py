"""The stop rules that are compared: classifiers, thresholds on one feature, fixed lengths and the oracle."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log
from typing import Literal

import numpy as np

from specbench_kit.predictors.scoring import NEVER
from specbench_kit.predictors.search import Found
from specbench_kit.training.offsets import Offsets
from specbench_kit.training.operating_point import OperatingPoint
from specbench_kit.training.rounds import Plan, Scores, fixed_length, until_below, until_rejection
from specbench_kit.training.timing import Timing

Kind = Literal["classifier", "feature", "threshold", "fixed", "plain", "oracle"]

DEFAULT_THRESHOLD, DEFAULT_LENGTH = 0.4, 20
"""Of the method `threshold`."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Scores drafted tokens in 0..1 and lets those from the threshold on pass."""

    score: Callable[[Offsets], Scores]
    threshold: float
    send_last: bool = False

    def plan(self, offsets: Offsets) -> Plan:
        """Stop at the first token that does not pass."""
        return until_below(self.score(offsets), self.threshold, send_last=self.send_last)


@dataclass(frozen=True, slots=True)
class Contender:
    """A stop rule with everything chosen; `policy_s` is what deciding costs per drafted token."""

    name: str
    kind: Kind
    policy_s: float
    plan: Callable[[Offsets], Plan]
    judge: Judge | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """A family after its search; `latency` is of single scores, in seconds."""

    family: str
    found: Found
    names: tuple[str, ...]
    latency: Mapping[str, float]

    def score(self, offsets: Offsets) -> Scores:
        """Of every drafted token."""
        features = offsets.features(self.names)
        return self.found.scorer.score_many(features.reshape(-1, len(self.names))).reshape(features.shape[:2])


@dataclass(frozen=True, slots=True)
class FeatureScale:
    """A draft statistic as a score in 0..1, higher meaning accepted, and the way back."""

    to_score: Callable[[Scores], Scores]
    to_value: Callable[[float], float]
    relation: Literal["≥", "≤"]

    def condition(self, name: str, threshold: float) -> str:
        """When a token passes, in the feature's own unit."""
        if threshold in (0, NEVER):
            return f"{name}: {'nothing' if threshold else 'everything'} passes"
        return f"{name} {self.relation} {self.to_value(threshold):.3g}"


SCALES = {
    "confidence": FeatureScale(lambda value: value, lambda score: score, "≥"),
    "entropy": FeatureScale(lambda value: np.exp(-value), lambda score: -log(score), "≤"),
    "margin": FeatureScale(lambda value: value, lambda score: score, "≥"),
    "logit_std": FeatureScale(
        lambda value: value / (1 + value), lambda score: score / (1 - score) if score < 1 else inf, "≥"
    ),
}
"""Of the features that may stop a draft on their own."""


def line_up(
    trained: Sequence[Trained], validation: Offsets, point: OperatingPoint, timing: Timing
) -> Iterator[Contender]:
    """Every contender, each with its threshold or length chosen on the validation offsets."""
    tune = partial(_tune, validation=validation, point=point, timing=timing)
    for one in trained:
        policy_s = timing.statistics_s + one.latency["median"]
        yield _judging(one.family, "classifier", policy_s, tune(Judge(one.score, 0.0), policy_s))
    for name, scale in SCALES.items():
        judge = tune(Judge(partial(feature_score, name=name), 0.0), timing.statistics_s)
        yield _judging(scale.condition(name, judge.threshold), "feature", timing.statistics_s, judge)
    yield from _confidence_thresholds(tune, validation.max_draft, timing)
    for count in sorted({_best_length(validation, timing), validation.max_draft}):
        yield Contender(f"fixed-k:k={count}", "fixed", 0.0, partial(fixed_length, count=count))
    yield Contender("autoregressive", "plain", 0.0, partial(fixed_length, count=0))
    yield Contender("oracle", "oracle", 0.0, until_rejection)


def _confidence_thresholds(tune: Callable[[Judge, float], Judge], longest: int, timing: Timing) -> Iterator[Contender]:
    """The method `threshold`, which sends the token that it stops at: tuned, and at its default."""
    score = partial(feature_score, name="confidence")
    tuned = tune(Judge(score, 0.0, send_last=True), timing.statistics_s).threshold
    for threshold, length in ((round(min(tuned, 1.0), 4), longest), (DEFAULT_THRESHOLD, min(DEFAULT_LENGTH, longest))):
        spec = f"threshold:threshold={threshold:g},max_draft={length}"
        yield _judging(spec, "threshold", timing.statistics_s, Judge(score, threshold, send_last=True))


def feature_score(offsets: Offsets, *, name: str) -> Scores:
    """One statistic of every drafted token as a score."""
    return SCALES[name].to_score(offsets.features((name,))[..., 0].astype(np.float64))


def _judging(name: str, kind: Kind, policy_s: float, judge: Judge) -> Contender:
    return Contender(name, kind, policy_s, judge.plan, judge)


def _tune(judge: Judge, policy_s: float, *, validation: Offsets, point: OperatingPoint, timing: Timing) -> Judge:
    """The same judge with the threshold that the operating point chooses."""
    scores = judge.score(validation)
    rows, columns = validation.met()

    def speed(threshold: float) -> float:
        plan = until_below(scores, threshold, send_last=judge.send_last)
        return timing.speed(validation, plan, policy_s)

    threshold = point.choose(columns < validation.matched[rows], scores[rows, columns], speed)
    return Judge(judge.score, threshold, judge.send_last)


def _best_length(validation: Offsets, timing: Timing) -> int:
    lengths = range(1, validation.max_draft + 1)
    return max(lengths, key=lambda count: timing.speed(validation, fixed_length(validation, count), 0.0))
