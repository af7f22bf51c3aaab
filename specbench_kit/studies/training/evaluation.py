"""An experiment on one split: families are trained, contenders chosen, and their effect on decoding
evaluated.

The evaluation uses prompts that no parameter was chosen on, and holds the wasted tokens against
WISP's Theorem 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.acceptance import counts, ratios
from specbench_kit.metrics.cost import per_makespan
from specbench_kit.metrics.latency import PHASES, wasted_time
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.predictors import scoring
from specbench_kit.predictors.base import families
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.search import Budget, SearchTrial, search
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey, ThresholdRule
from specbench_kit.studies.training.contenders import (
    Contender,
    ContenderTuner,
    DeploymentTuning,
    Kind,
    PairedSums,
    SumOf,
    Sums,
    ThresholdJudge,
    TrainedFamily,
    family_of,
    sums_by_prompt,
)
from specbench_kit.studies.training.examples import Split, extract
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.operating_point import OperatingPoint
from specbench_kit.studies.training.plots import ScoredTokens
from specbench_kit.studies.training.rounds import PlayedRounds, Seconds, play, stop_at_rejection
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing
from specbench_kit.studies.training.wording import (
    Attribution,
    BoundTerm,
    Choices,
    ContenderDecoding,
    Leaders,
    RatioEstimate,
    WasteBound,
)


def waste_and_bound(offsets: Offsets, rounds: PlayedRounds, judge: ThresholdJudge) -> WasteBound:
    """Return the bound of Eq. 31, sum over r of (K - r + 1) P(R = r) FP(r), and the measured E[W]
    over the rounds.

    K is the judge's longest draft, R the position of the first token that the target rejects, FP(r)
    the share of the rounds with R = r in which the judge lets that token pass, and W the number of
    tokens sent from R on.
    """
    longest = judge.longest
    matched = np.minimum(offsets.matched[rounds.offset], longest)
    scores = judge.stopping_scores(offsets)[rounds.offset, np.minimum(matched, longest - 1)]
    passes = scores >= judge.threshold
    terms: list[BoundTerm] = []
    for position in range(1, longest + 1):
        rejected = matched == position - 1
        probability = float(rejected.mean())
        false_positive = float(passes[rejected].mean()) if rejected.any() else None
        bound = (longest - position + 1) * probability * (false_positive or 0.0)
        terms.append(BoundTerm(position, probability, false_positive, bound))
    wasted = float(np.maximum(0, rounds.submitted - matched).mean())
    return WasteBound(longest, sum(term.term for term in terms), wasted, terms)


COLUMNS = ("drafted", "submitted", "accepted", "committed")
NO_SECONDS = dict.fromkeys((*(f"{phase}_s" for phase in PHASES), "end_s"), 0.0)


@dataclass(frozen=True, slots=True)
class PlayedContender:
    """A contender with its rounds on some offsets and the seconds of each round."""

    contender: Contender
    rounds: PlayedRounds
    seconds: Seconds

    @classmethod
    def on(cls, offsets: Offsets, contender: Contender, timing: Timing) -> "PlayedContender":
        """Play the contender on whole requests."""
        rounds = play(offsets, contender.plan(offsets))
        return cls(contender, rounds, contender.seconds(rounds, timing))

    @property
    def speed(self) -> float:
        """Return the committed tokens per second."""
        return float(self.rounds.committed.sum() / self.seconds.sum())


def find_leaders(
    contenders: Sequence[Contender], best: Contender, speeds: Mapping[str, float], max_draft: int
) -> Leaders:
    """Choose by `speeds`, which are by name; `best` is the fastest classifier of all families and
    rules.
    """

    def fastest(kind: Kind) -> str:
        names = (contender.name for contender in contenders if contender.kind == kind)
        return max(names, key=speeds.__getitem__)

    return Leaders(
        classifier=family_of(best),
        rule=best.name,
        feature=fastest("feature"),
        threshold=fastest("threshold"),
        fixed=fastest("fixed"),
        longest=f"fixed-k:k={max_draft}",
    )


class Evaluation:
    """All contenders on the same offsets."""

    def __init__(
        self, offsets: Offsets, contenders: Sequence[Contender], leaders: Leaders, timing: Timing
    ) -> None:
        self.offsets = offsets
        self.leaders = leaders
        self.timing = timing
        self.played = {
            contender.name: PlayedContender.on(offsets, contender, timing)
            for contender in contenders
        }
        columns = {}
        for name, played in self.played.items():
            values = {column: getattr(played.rounds, column) for column in COLUMNS} | {
                "seconds": played.seconds
            }
            for column, value in values.items():
                columns[name, column] = sums_by_prompt(offsets, played.rounds, value)
        self.paired = PairedSums(columns)

    def decoding(self) -> dict[str, ContenderDecoding]:
        """Return each contender's metrics, and its ratios to others."""
        metrics = {}
        for name, played in self.played.items():
            group = RequestGroup(
                to_records(self.offsets, played.rounds, self.timing, played.contender.paid_s)
            )
            values = counts(group) | ratios(group.rounds) | wasted_time(group.rounds)
            values |= per_makespan(group, float(played.seconds.sum())) | self._ratios(name)
            metrics[name] = ContenderDecoding(kind=played.contender.kind, **values)
        return metrics

    def classification(self) -> dict[str, scoring.Classification]:
        """Return how well each judge separates accepted from rejected tokens (WISP Tables 4 and
        10).
        """
        return {
            name: scoring.summarise(
                *labels_and_scores(self.offsets, played.contender), judge.threshold
            )
            for name, played in self.played.items()
            if (judge := played.contender.judge) and played.contender.kind != "variant"
        }

    def judged(self) -> dict[str, ScoredTokens]:
        """Return the test tokens as each classifier and the best single feature score them."""
        contenders = [
            played.contender
            for played in self.played.values()
            if played.contender.kind == "classifier"
        ]
        contenders.append(self.played[self.leaders.feature].contender)
        return {
            contender.name: ScoredTokens(
                *labels_and_scores(self.offsets, contender), contender.judge.threshold
            )
            for contender in contenders
            if contender.judge
        }

    def theorem(self) -> dict[str, WasteBound]:
        """Return Theorem 1's bound for the rules that it covers: those that do not submit the token
        they stop at.
        """
        return {
            name: waste_and_bound(self.offsets, played.rounds, judge)
            for name, played in self.played.items()
            if (judge := played.contender.judge) and not judge.rule.send_last
        }

    def speed_ratio(self, name: str, other: str) -> RatioEstimate:
        """Return one contender's speed over another's; both commit the same tokens."""
        return self.paired.estimate(lambda get: get(other, "seconds") / get(name, "seconds"))

    def choices(self) -> Choices:
        """Return speed ratios between the methods that a user can choose from."""
        leaders = self.leaders
        return Choices(
            wisp_over_fixed=self.speed_ratio(leaders.rule, leaders.fixed),
            confidence_over_fixed=self.speed_ratio(leaders.threshold, leaders.fixed),
            wisp_over_confidence=self.speed_ratio(leaders.rule, leaders.threshold),
            plain_over_fixed=self.speed_ratio("autoregressive", leaders.fixed),
        )

    def attribution(self) -> Attribution:
        """Return the recommended classifier's tokens per second if one of its shortcomings is
        removed at a time.
        """
        leader = self.played[self.leaders.classifier].contender
        submitting_last = self.played[
            f"{self.leaders.classifier},{ThresholdRule(send_last=True).options}"
        ]
        return Attribution(
            never_wrong=self.timing.speed(
                self.offsets, stop_at_rejection(self.offsets), leader.policy_s
            ),
            deciding_for_free=self.timing.speed(self.offsets, leader.plan(self.offsets), 0.0),
            last_token_sent=submitting_last.speed,
        )

    def _ratios(self, name: str) -> dict[str, RatioEstimate]:
        leaders = self.leaders
        paired = self.paired

        def acceptance(get: SumOf, contender: str) -> Sums:
            return get(contender, "accepted") / get(contender, "submitted")

        def gap_closed(get: SumOf) -> Sums:
            """Return the share of the gap from the best fixed length to the oracle; nan if there is
            no gap.
            """
            fixed, oracle, own = (
                1 / get(contender, "seconds") for contender in (leaders.fixed, "oracle", name)
            )
            return np.where(oracle > fixed, (own - fixed) / (oracle - fixed), np.nan)

        return {
            "speedup": self.speed_ratio(name, "autoregressive"),
            "against_best_fixed": self.speed_ratio(name, leaders.fixed),
            "against_best_feature": self.speed_ratio(name, leaders.feature),
            "regret": paired.estimate(
                lambda get: 1 - get("oracle", "seconds") / get(name, "seconds")
            ),
            "gap_closed": paired.estimate(gap_closed),
            "acceptance_gain": paired.estimate(
                lambda get: acceptance(get, name) / acceptance(get, leaders.longest) - 1
            ),
        }


def labels_and_scores(
    offsets: Offsets, contender: Contender
) -> tuple[scoring.Labels, scoring.Scores]:
    """Return labels and scores of the examples that the offsets hold."""
    assert contender.judge is not None
    rows, columns = offsets.examined()
    return columns < offsets.matched[rows], contender.judge.score(offsets)[rows, columns]


def to_records(
    offsets: Offsets, rounds: PlayedRounds, timing: Timing, policy_s: float
) -> list[RequestRecord]:
    """Return the rounds as the records of a replay, with modelled seconds but without the times at
    which they end.
    """
    records = {
        int(number): RequestRecord(str(number), "", [], time_kind="modelled")
        for number in offsets.request
    }
    columns = (getattr(rounds, column).tolist() for column in COLUMNS)
    for request, drafted, submitted, accepted, committed in zip(
        offsets.request[rounds.offset].tolist(), *columns, strict=True
    ):
        seconds = {
            **NO_SECONDS,
            "draft_s": drafted * timing.draft_s,
            "policy_s": drafted * policy_s,
            "verify_s": timing.verify_s[submitted],
            "link_s": timing.link_s[submitted] if timing.link_s else 0.0,
        }
        records[request].rounds.append(
            RoundRecord(drafted, submitted, accepted, committed, **seconds)
        )
    return list(records.values())


FASTEST = OperatingPoint()
LATENCY_TRIALS = 1000
"""Single scores that are timed per family, as in WISP Table 11."""


@dataclass(frozen=True)
class TrainingExperiment:
    """Families trained on one split; contenders are chosen on its validation part and evaluated on
    its test part.

    `key` and `timing` belong to the deployment that the report is about. `further` are other deployments to choose
    thresholds for, always by speed, since other operating points do not depend on the deployment.
    """

    settings: PredictorTrainingSettings
    split: Split
    timing: Timing
    trained: Mapping[str, TrainedFamily]
    key: DeploymentKey = LOCAL_DEPLOYMENT
    further: Sequence[tuple[DeploymentKey, Timing]] = ()

    @cached_property
    def tuning(self) -> DeploymentTuning:
        """Return the tuning for the deployment that the report is about."""
        tuner = ContenderTuner(self.split.validation, self.settings.point, self.timing)
        return DeploymentTuning(self.key, tuner, self.trained)

    @cached_property
    def tunings(self) -> tuple[DeploymentTuning, ...]:
        """Return the tunings for all deployments, that of the report first."""
        further = (
            DeploymentTuning(
                key, ContenderTuner(self.split.validation, FASTEST, timing), self.trained
            )
            for key, timing in self.further
        )
        return (self.tuning, *further)

    @property
    def tuner(self) -> ContenderTuner:
        """Return the tuner for the deployment that the report is about."""
        return self.tuning.tuner

    @cached_property
    def line_up(self) -> tuple[Contender, ...]:
        """Return all contenders, with classifiers under the published rule only."""
        return (*(rules[0] for rules in self.tuning.by_rule.values()), *self.tuner.untrained())

    @cached_property
    def leaders(self) -> Leaders:
        """Return the fastest contender of each kind, chosen without looking at a test prompt."""
        speeds = {contender.name: self.tuner.speed(contender) for contender in self.line_up}
        best = self.tuning.fastest(list(self.trained))
        return find_leaders(self.line_up, best, speeds, self.split.validation.max_draft)

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """Return all contenders, including the recommended classifier under the other rules."""
        return (*self.line_up, *self.tuning.by_rule[self.leaders.classifier][1:])

    @cached_property
    def evaluation(self) -> Evaluation:
        """Return the evaluation of all contenders on the test part."""
        return Evaluation(self.split.test, self.contenders, self.leaders, self.timing)


def train(
    settings: PredictorTrainingSettings,
    split: Split,
    timing: Timing,
    report: ProgressCallback,
    key: DeploymentKey = LOCAL_DEPLOYMENT,
    further: Sequence[tuple[DeploymentKey, Timing]] = (),
) -> TrainingExperiment:
    """Search hyper-parameters and train every family; thresholds are chosen when the experiment is
    asked for them.
    """
    for name, part in split.parts.items():
        extract(part).require_both_classes(name)
    training, validation = (
        extract(part, settings.features) for part in (split.training, split.validation)
    )
    samples = extract(split.test, settings.features).features[:LATENCY_TRIALS].tolist()
    trained = {}
    for family in settings.chosen_families:
        result = search(
            families.get(family)(),
            training,
            validation,
            Budget(settings.trials),
            settings.seed,
            partial(_report_trial, report, family),
            settings.space_of(family),
        )
        latency = time_scores(result.scorer, samples, LATENCY_TRIALS)
        trained[family] = TrainedFamily(family, result, settings.features, latency)
    return TrainingExperiment(settings, split, timing, trained, key, further)


def _report_trial(
    report: ProgressCallback, family: str, done: int, planned: int, _trial: SearchTrial
) -> None:
    report(f"training {family}", done, planned)
