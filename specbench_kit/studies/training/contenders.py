"""The stop rules that are compared: classifiers, thresholds on one feature, fixed lengths and the oracle."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.search import SearchResult
from specbench_kit.predictors.thresholds import NEVER, PUBLISHED_RULE, THRESHOLD_RULES, ThresholdRule
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.operating_point import OperatingPoint
from specbench_kit.studies.training.rounds import (
    Plan,
    RoundArrays,
    Scores,
    fixed_length,
    play,
    until_below,
    until_below_each,
    until_rejection,
)
from specbench_kit.studies.training.timing import Timing

Kind = Literal["classifier", "feature", "threshold", "fixed", "plain", "oracle", "variant"]

DEFAULT_THRESHOLD, DEFAULT_LENGTH = 0.4, 20
"""Of the method `threshold`."""


@dataclass(frozen=True, slots=True)
class ThresholdJudge:
    """Scores drafted tokens in 0..1 and drafts on while what the rule makes of them reaches the threshold.

    It drafts `longest` tokens at most.
    """

    score: Callable[[Offsets], Scores]
    longest: int
    threshold: float = 0.0
    rule: ThresholdRule = PUBLISHED_RULE

    def compared(self, offsets: Offsets) -> Scores:
        """Return the values that the rule compares with the threshold, [n, max_draft]."""
        return self.rule.compared(self.score(offsets))

    def plan(self, offsets: Offsets) -> Plan:
        """Return the rounds that stop at the first token below the threshold, as the rule says."""
        compared = self.compared(offsets)[:, : self.longest]
        return until_below(compared, self.threshold, send_last=self.rule.send_last)


@dataclass(frozen=True, slots=True)
class Contender:
    """A stop rule with everything chosen; `policy_s` is what deciding on a drafted token costs."""

    name: str
    kind: Kind
    policy_s: float
    plan: Callable[[Offsets], Plan]
    judge: ThresholdJudge | None = None

    @classmethod
    def judging(cls, name: str, kind: Kind, policy_s: float, judge: ThresholdJudge) -> "Contender":
        """One that decides token by token."""
        return cls(name, kind, policy_s, judge.plan, judge)

    @property
    def paid_s(self) -> float:
        """What it spends per drafted token: where every token passes there is nothing to decide."""
        return self.policy_s if self.judge is None or self.judge.threshold else 0.0

    def seconds(self, rounds: RoundArrays, timing: Timing) -> NDArray[np.float64]:
        """Of each of its rounds."""
        return (timing.without_link if self.kind == "plain" else timing).seconds(rounds, self.paid_s)


@dataclass(frozen=True, slots=True)
class TrainedFamily:
    """A family after its search; `latency` is of single scores, in seconds."""

    family: str
    found: SearchResult
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


@dataclass(frozen=True, slots=True)
class ContenderTuner:
    """Chooses everything about a contender by one rule, on the validation offsets."""

    validation: Offsets
    point: OperatingPoint
    timing: Timing

    def rivals(self) -> Iterator[Contender]:
        """Every contender that needs no training."""
        yield from map(self._feature, SCALES)
        yield from self._confidence_thresholds()
        yield from self._fixed_lengths()
        yield Contender("autoregressive", "plain", 0.0, partial(fixed_length, count=0))
        yield self.oracle

    @property
    def oracle(self) -> Contender:
        """Never wrong, and decides for free."""
        return Contender("oracle", "oracle", 0.0, until_rejection)

    def by_rules(self, trained: TrainedFamily) -> tuple[Contender, ...]:
        """A classifier under every rule, WISP's first."""
        policy_s = self.timing.decision_s(trained.latency["median"])
        tuned = [
            self._tuned(ThresholdJudge(trained.score, self.validation.max_draft, rule=rule), policy_s)
            for rule in THRESHOLD_RULES
        ]
        return tuple(
            Contender.judging(trained.family, "classifier", policy_s, judge)
            if judge.rule == PUBLISHED_RULE
            else Contender.judging(f"{trained.family},{judge.rule.options}", "variant", policy_s, judge)
            for judge in tuned
        )

    def best_fixed(self) -> Contender:
        """The fastest length."""
        return max(self._lengths(), key=self.speed)

    def best_confidence(self) -> Contender:
        """The method `threshold`, tuned."""
        return next(self._confidence_thresholds())

    def speed(self, contender: Contender) -> float:
        """Tokens per second on the validation offsets."""
        rounds = play(self.validation, contender.plan(self.validation))
        return float(rounds.committed.sum() / contender.seconds(rounds, self.timing).sum())

    def _feature(self, name: str) -> Contender:
        judge = self._tuned(_on_feature(name, self.validation.max_draft), self.timing.statistics_s)
        condition = SCALES[name].condition(name, judge.threshold)
        return Contender.judging(condition, "feature", self.timing.statistics_s, judge)

    def _confidence_thresholds(self) -> Iterator[Contender]:
        """The method `threshold`, which sends the token that it stops at: tuned, and at its default."""
        recorded, policy_s = self.validation.max_draft, self.timing.statistics_s
        by_confidence = replace(_on_feature("confidence", recorded), rule=ThresholdRule(send_last=True))
        tuned = self._tuned(by_confidence, policy_s)
        default = replace(by_confidence, threshold=DEFAULT_THRESHOLD, longest=min(DEFAULT_LENGTH, recorded))
        for judge in (replace(tuned, threshold=round(min(tuned.threshold, 1.0), 4)), default):
            spec = f"threshold:threshold={judge.threshold:g},max_draft={judge.longest}"
            yield Contender.judging(spec, "threshold", policy_s, judge)

    def _fixed_lengths(self) -> Iterator[Contender]:
        """The fastest length, and the longest."""
        lengths = self._lengths()
        yield from dict.fromkeys([max(lengths, key=self.speed), lengths[-1]])

    def _lengths(self) -> list[Contender]:
        return [
            Contender(f"fixed-k:k={count}", "fixed", 0.0, partial(fixed_length, count=count))
            for count in range(1, self.validation.max_draft + 1)
        ]

    def _tuned(self, judge: ThresholdJudge, policy_s: float) -> ThresholdJudge:
        """The same judge with threshold and longest draft chosen."""
        scores = judge.compared(self.validation)
        rows, columns = self.validation.met()

        def speeds(thresholds: Sequence[float], longest: int) -> list[float]:
            plans = until_below_each(scores[:, :longest], thresholds, send_last=judge.rule.send_last)
            paid_s = np.where(np.asarray(thresholds) > 0, policy_s, 0.0)
            return self.timing.speeds(self.validation, plans, paid_s)

        labels, met = columns < self.validation.matched[rows], scores[rows, columns]
        threshold, longest = self.point.choose(labels, met, self.validation.max_draft, speeds)
        return replace(judge, threshold=threshold, longest=longest)


def family_of(contender: Contender) -> str:
    """Of a classifier, under whichever rule."""
    return contender.name.partition(",")[0]


def feature_score(offsets: Offsets, *, name: str) -> Scores:
    """One statistic of every drafted token as a score."""
    return SCALES[name].to_score(offsets.features((name,))[..., 0].astype(np.float64))


def _on_feature(name: str, longest: int) -> ThresholdJudge:
    return ThresholdJudge(partial(feature_score, name=name), longest)
