"""The stop rules that are compared: classifiers, thresholds on one feature, fixed lengths and the
oracle.

Their parameters are chosen at one operating point, and those of classifiers once more for each
deployment.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, log
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.metrics.statistics import interval_of_estimate
from specbench_kit.predictors.search import SearchResult
from specbench_kit.predictors.thresholds import (
    NEVER,
    PUBLISHED_RULE,
    THRESHOLD_RULES,
    DeploymentKey,
    ThresholdRule,
    TunedThreshold,
)
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.operating_point import OperatingPoint
from specbench_kit.studies.training.rounds import (
    PlannedDrafts,
    PlayedRounds,
    Scores,
    Seconds,
    fastest_lengths,
    fixed_length,
    play,
    stop_below,
    stop_below_each,
)
from specbench_kit.studies.training.timing import Timing
from specbench_kit.studies.training.wording import RatioEstimate, SiteContender, SiteSummary

Kind = Literal["classifier", "feature", "threshold", "fixed", "plain", "oracle", "variant"]

DEFAULT_THRESHOLD = 0.4
DEFAULT_LENGTH = 20
"""Default options of the method `threshold`."""


@dataclass(frozen=True, slots=True)
class ThresholdJudge:
    """Scores drafted tokens in 0..1 and stops at the first one below the threshold, as the rule
    says.

    It drafts at most `longest` tokens.
    """

    score: Callable[[Offsets], Scores]
    longest: int
    threshold: float = 0.0
    rule: ThresholdRule = PUBLISHED_RULE

    def stopping_scores(self, offsets: Offsets) -> Scores:
        """Return the values that the rule compares with the threshold, [n, max_draft]."""
        return self.rule.compared(self.score(offsets))

    def plan(self, offsets: Offsets) -> PlannedDrafts:
        """Return the tokens drafted and submitted from each offset."""
        scores = self.stopping_scores(offsets)[:, : self.longest]
        return stop_below(scores, self.threshold, send_last=self.rule.send_last)


@dataclass(frozen=True, slots=True)
class Contender:
    """A stop rule with all its parameters chosen; `policy_s` is the cost of its decision on a
    drafted token.
    """

    name: str
    kind: Kind
    policy_s: float
    plan: Callable[[Offsets], PlannedDrafts]
    judge: ThresholdJudge | None = None

    @classmethod
    def judging(cls, name: str, kind: Kind, policy_s: float, judge: ThresholdJudge) -> "Contender":
        """Return a contender that decides token by token."""
        return cls(name, kind, policy_s, judge.plan, judge)

    @property
    def paid_s(self) -> float:
        """Return the seconds that it pays per drafted token: none if the threshold lets every token
        pass.
        """
        return self.policy_s if self.judge is None or self.judge.threshold else 0.0

    def seconds(self, rounds: PlayedRounds, timing: Timing) -> Seconds:
        """Return the seconds of each of its rounds."""
        if self.kind == "oracle":
            return np.asarray(timing.round_s)[rounds.drafted]
        return (timing.without_link if self.kind == "plain" else timing).seconds(
            rounds, self.paid_s
        )


@dataclass(frozen=True, slots=True)
class TrainedFamily:
    """A predictor family after its search; `latency` summarises the seconds of single scores."""

    family: str
    search: SearchResult
    names: tuple[str, ...]
    latency: Mapping[str, float]

    def score(self, offsets: Offsets) -> Scores:
        """Return the score of every drafted token, [n, max_draft]."""
        features = offsets.features(self.names)
        return self.search.scorer.score_many(features.reshape(-1, len(self.names))).reshape(
            features.shape[:2]
        )


@dataclass(frozen=True, slots=True)
class FeatureScale:
    """A draft statistic as a score in 0..1, where higher means more likely accepted, and the way
    back.
    """

    to_score: Callable[[Scores], Scores]
    to_value: Callable[[float], float]
    relation: Literal["≥", "≤"]

    def condition(self, name: str, threshold: float) -> str:
        """Return the condition under which a token passes, in the feature's own unit."""
        if threshold in (0, NEVER):
            return f"{name}: {'nothing' if threshold else 'everything'} passes"
        return f"{name} {self.relation} {self.to_value(threshold):.3g}"


SCALES = {
    "confidence": FeatureScale(lambda value: value, lambda score: score, "≥"),
    "entropy": FeatureScale(lambda value: np.exp(-value), lambda score: -log(score), "≤"),
    "margin": FeatureScale(lambda value: value, lambda score: score, "≥"),
    "logit_std": FeatureScale(
        lambda value: value / (1 + value),
        lambda score: score / (1 - score) if score < 1 else inf,
        "≥",
    ),
}
"""The features that can stop a draft on their own."""


@dataclass(frozen=True, slots=True)
class ContenderTuner:
    """Chooses all parameters of the contenders by one operating point, on the validation
    offsets.
    """

    validation: Offsets
    point: OperatingPoint
    timing: Timing

    def untrained(self) -> Iterator[Contender]:
        """Yield every contender that needs no training."""
        for name in SCALES:
            judge = self._tuned(
                _feature_judge(name, self.validation.max_draft), self.timing.statistics_s
            )
            condition = SCALES[name].condition(name, judge.threshold)
            yield Contender.judging(condition, "feature", self.timing.statistics_s, judge)
        yield from self._confidence_thresholds()
        lengths = self._lengths()
        yield from dict.fromkeys([max(lengths, key=self.speed), lengths[-1]])
        yield Contender("autoregressive", "plain", 0.0, partial(fixed_length, count=0))
        yield self.oracle

    @property
    def oracle(self) -> Contender:
        """Return the bound: the contender whose lengths let every answer take the least time,
        decided at no cost.
        """
        return Contender(
            "oracle", "oracle", 0.0, partial(fastest_lengths, round_s=self.timing.round_s)
        )

    def classifiers(self, trained: TrainedFamily) -> tuple[Contender, ...]:
        """Return a trained family under every threshold rule, the rule that WISP published
        first.
        """
        policy_s = self.timing.decision_s(trained.latency["median"])
        contenders = []
        for rule in THRESHOLD_RULES:
            judge = self._tuned(
                ThresholdJudge(trained.score, self.validation.max_draft, rule=rule), policy_s
            )
            published = rule == PUBLISHED_RULE
            name = trained.family if published else f"{trained.family},{rule.options}"
            contenders.append(
                Contender.judging(name, "classifier" if published else "variant", policy_s, judge)
            )
        return tuple(contenders)

    def best_fixed(self) -> Contender:
        """Return the fastest fixed length."""
        return max(self._lengths(), key=self.speed)

    def best_confidence(self) -> Contender:
        """Return the method `threshold` with tuned options."""
        return next(self._confidence_thresholds())

    def speed(self, contender: Contender) -> float:
        """Return the contender's tokens per second on the validation offsets."""
        rounds = play(self.validation, contender.plan(self.validation))
        return float(rounds.committed.sum() / contender.seconds(rounds, self.timing).sum())

    def _confidence_thresholds(self) -> Iterator[Contender]:
        """Yield the method `threshold`, which submits the token that it stops at: tuned, and with
        its defaults.
        """
        max_draft = self.validation.max_draft
        policy_s = self.timing.statistics_s
        confidence = replace(
            _feature_judge("confidence", max_draft), rule=ThresholdRule(send_last=True)
        )
        tuned = self._tuned(confidence, policy_s)
        default = replace(
            confidence, threshold=DEFAULT_THRESHOLD, longest=min(DEFAULT_LENGTH, max_draft)
        )
        for judge in (replace(tuned, threshold=round(min(tuned.threshold, 1.0), 4)), default):
            spec = f"threshold:threshold={judge.threshold:g},max_draft={judge.longest}"
            yield Contender.judging(spec, "threshold", policy_s, judge)

    def _lengths(self) -> list[Contender]:
        return [
            Contender(f"fixed-k:k={count}", "fixed", 0.0, partial(fixed_length, count=count))
            for count in range(1, self.validation.max_draft + 1)
        ]

    def _tuned(self, judge: ThresholdJudge, policy_s: float) -> ThresholdJudge:
        """Return the judge with threshold and longest draft chosen."""
        scores = judge.stopping_scores(self.validation)
        rows, columns = self.validation.examined()

        def speeds(thresholds: Sequence[float], longest: int) -> list[float]:
            plans = stop_below_each(scores[:, :longest], thresholds, send_last=judge.rule.send_last)
            paid_s = np.where(np.asarray(thresholds) > 0, policy_s, 0.0)
            return self.timing.speeds(self.validation, plans, paid_s)

        labels = columns < self.validation.matched[rows]
        threshold, longest = self.point.choose(
            labels, scores[rows, columns], self.validation.max_draft, speeds
        )
        return replace(judge, threshold=threshold, longest=longest)


def family_of(contender: Contender) -> str:
    """Return the family of a classifier under whichever rule."""
    return contender.name.partition(",")[0]


def feature_score(offsets: Offsets, *, name: str) -> Scores:
    """Return one statistic of every drafted token as a score, [n, max_draft]."""
    return SCALES[name].to_score(offsets.features((name,))[..., 0].astype(np.float64))


def _feature_judge(name: str, longest: int) -> ThresholdJudge:
    return ThresholdJudge(partial(feature_score, name=name), longest)


Sums = NDArray[np.float64]
"""Sums over all prompts but one, [prompts], or one sum over all prompts, [1]."""
SumOf = Callable[[str, str], Sums]
"""Returns the sums of a column, by the contender's name and the column's name."""


class PairedSums:
    """Sums over the prompts that all contenders share, and over all of these prompts but one (the
    jackknife).
    """

    def __init__(self, columns: Mapping[tuple[str, str], ArrayLike]) -> None:
        self._index = {key: index for index, key in enumerate(columns)}
        table = np.column_stack([np.asarray(column, np.float64) for column in columns.values()])
        self._sums = table.sum(axis=0, keepdims=True)
        self._without = self._sums - table
        total = np.where(self._sums > 0, self._sums, 1)
        self._weight = (table / total).mean(axis=1)

    def estimate(self, quantity: Callable[[SumOf], Sums]) -> RatioEstimate:
        """Return a quantity of sums; it is undefined if it is not finite."""

        def evaluate(sums: Sums) -> Sums:
            return quantity(lambda contender, column: sums[:, self._index[contender, column]])

        with np.errstate(divide="ignore", invalid="ignore"):
            (value,), without = evaluate(self._sums), evaluate(self._without)
        if not np.isfinite(value):
            return RatioEstimate(None, None)
        return RatioEstimate(
            float(value), interval_of_estimate(float(value), without, self._weight)
        )


@dataclass(frozen=True)
class DeploymentTuning:
    """The trained families with thresholds and longest drafts chosen for the time of one
    deployment.
    """

    key: DeploymentKey
    tuner: ContenderTuner
    trained: Mapping[str, TrainedFamily]

    @cached_property
    def by_rule(self) -> Mapping[str, tuple[Contender, ...]]:
        """Return every family under every threshold rule, the rule that WISP published first."""
        return {family: self.tuner.classifiers(trained) for family, trained in self.trained.items()}

    def fastest(self, families: Sequence[str]) -> Contender:
        """Return the fastest classifier of these families under any rule, on the validation
        offsets.
        """
        return max(
            (contender for family in families for contender in self.by_rule[family]),
            key=self.tuner.speed,
        )

    def thresholds(self, family: str) -> Iterator[TunedThreshold]:
        """Yield the chosen threshold of a family for each rule."""
        for contender in self.by_rule[family]:
            judge = contender.judge
            assert judge is not None
            yield TunedThreshold(
                *self.key, *judge.rule, threshold=judge.threshold, max_draft=judge.longest
            )

    def worth(self, family: str, test: Offsets) -> SiteSummary:
        """Return the speed of a family over the best fixed length on the test offsets, with the
        costs involved.
        """
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
        sums = {
            (name, "s"): self._seconds(contender, test) for name, contender in contenders.items()
        }
        paired = PairedSums({**sums, ("fixed", "s"): self._seconds(fixed, test)})

        described = {}
        for name, contender in contenders.items():
            judge = contender.judge
            speedup = paired.estimate(partial(_speedup, name=name))
            described[name] = SiteContender(
                name=contender.name,
                threshold=judge.threshold if judge else None,
                longest=judge.longest if judge else None,
                value=speedup.value,
                interval=speedup.interval,
            )
        return SiteSummary(
            deployment=self.key.name,
            fixed=fixed.name,
            **described,
            decision_s=best.policy_s,
            decision_origin=timing.origin,
            draft_s=timing.draft_s,
            round_s=timing.verify_s[0] + (timing.link_s[0] if timing.link_s else 0.0),
        )

    def _seconds(self, contender: Contender, test: Offsets) -> Sums:
        rounds = play(test, contender.plan(test))
        return sums_by_prompt(test, rounds, contender.seconds(rounds, self.tuner.timing))


def _speedup(get: SumOf, *, name: str) -> Sums:
    """Return the speed of a contender over the best fixed length."""
    return get("fixed", "s") / get(name, "s")


def sums_by_prompt(offsets: Offsets, rounds: PlayedRounds, values: ArrayLike) -> Sums:
    """Return the sums of one value per round, [prompts]."""
    _, prompt = np.unique(offsets.conversation[rounds.offset], return_inverse=True)
    return np.bincount(prompt, weights=np.asarray(values)).astype(np.float64)
