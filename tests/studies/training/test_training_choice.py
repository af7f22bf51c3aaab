"""Operating points, contenders and the leaders among them."""

from dataclasses import replace

import numpy as np
import pytest
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors import base
from specbench_kit.predictors.base import families
from specbench_kit.predictors.scoring import confusion
from specbench_kit.predictors.thresholds import (
    NEVER,
    PUBLISHED_RULE,
    THRESHOLD_RULES,
    DeploymentKey,
)
from specbench_kit.studies.training.contenders import (
    SCALES,
    Contender,
    ContenderTuner,
    ThresholdJudge,
    feature_score,
)
from specbench_kit.studies.training.evaluation import TrainingExperiment, labels_and_scores, train
from specbench_kit.studies.training.examples import Split, split_by_prompt
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.studies.training.operating_point import OperatingPoint, parse_operating_point
from specbench_kit.studies.training.rounds import fixed_length, stop_below, stop_below_each
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing

TIMING = Timing(DRAFT_S, VERIFY_S, 1e-4)
DEFAULT = OperatingPoint()


@pytest.fixture(scope="module")
def offsets(tmp_path_factory: pytest.TempPathFactory) -> Offsets:
    return read_offsets(
        write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(30))
    )


@pytest.fixture(scope="module")
def experiment(offsets: Offsets) -> TrainingExperiment:
    settings = PredictorTrainingSettings(families=("logistic", "xgboost"), trials=1)
    return train(settings, split_by_prompt(offsets, 0), TIMING, lambda *_: None)


def line_up(
    offsets: Offsets, point: OperatingPoint = DEFAULT, timing: Timing = TIMING
) -> list[Contender]:
    return list(ContenderTuner(offsets, point, timing).untrained())


def judge_of(contenders: list[Contender], feature: str) -> ThresholdJudge:
    (judge,) = [
        contender.judge
        for contender in contenders
        if contender.kind == "feature" and contender.name.startswith(feature)
    ]
    assert judge is not None
    return judge


def test_operating_points_are_read_and_told() -> None:
    for text in ("throughput", "balanced", "fpr=0.1"):
        assert str(parse_operating_point(text)) == text
    for text in ("fpr", "fpr=2", "fpr=x", "speed", ""):
        with pytest.raises(SkitError, match=r"use throughput, balanced, or fpr=RATE"):
            parse_operating_point(text)


def test_the_default_rule_takes_the_fastest_threshold_and_longest_draft_on_the_validation_offsets(
    offsets: Offsets,
) -> None:
    judge = judge_of(line_up(offsets), "confidence")
    scores = feature_score(offsets, name="confidence")

    def speed(threshold: float, longest: int) -> float:
        policy_s = TIMING.statistics_s if threshold else 0.0
        return TIMING.speed(offsets, stop_below(scores[:, :longest], threshold), policy_s)

    chosen = speed(judge.threshold, judge.longest)
    for longest in range(1, MAX_DRAFT + 1):
        for threshold in np.linspace(0, 1, 15):
            assert speed(threshold, longest) <= 1.003 * chosen


def test_no_judge_is_slower_than_the_best_fixed_length(offsets: Offsets) -> None:
    """A threshold that all tokens pass is a fixed length, and costs no decisions: the rule can fall back on it."""
    for statistics_s in (0.0, 1e-4, 1e-2):
        chooser = ContenderTuner(offsets, DEFAULT, Timing(DRAFT_S, VERIFY_S, statistics_s))
        speeds = {
            contender.name: chooser.speed(contender)
            for contender in chooser.untrained()
            if contender.kind in ("feature", "fixed")
        }
        fixed = max(speed for name, speed in speeds.items() if name.startswith("fixed-k"))
        assert min(
            speed for name, speed in speeds.items() if not name.startswith("fixed-k")
        ) >= fixed * (1 - 1e-9)
    assert {
        contender.paid_s for contender in chooser.untrained() if contender.kind == "feature"
    } == {0.0}


def test_every_rule_is_chosen_for_anew_and_sending_the_last_token_costs_no_speed(
    experiment: TrainingExperiment,
) -> None:
    rules = experiment.tuning.by_rule["logistic"]
    assert [contender.judge.rule for contender in rules if contender.judge] == list(THRESHOLD_RULES)
    assert [contender.name for contender in rules[:3]] == [
        "logistic",
        "logistic,score=cumulative",
        "logistic,send_last=true",
    ]
    speeds = {contender.name: experiment.tuner.speed(contender) for contender in rules}
    assert speeds["logistic,send_last=true"] > speeds["logistic"]
    assert speeds["logistic,send_last=true,score=cumulative"] > speeds["logistic,score=cumulative"]
    assert speeds[experiment.leaders.rule] == max(speeds.values())


def test_several_plans_take_what_each_takes_alone(offsets: Offsets) -> None:
    scores, thresholds = feature_score(offsets, name="confidence"), [0.0, 0.4, 0.8, NEVER]
    for send_last in (False, True):
        plans = stop_below_each(scores, thresholds, send_last=send_last)
        together = TIMING.speeds(offsets, plans, np.full(4, 1e-4))
        alone = [
            TIMING.speed(offsets, stop_below(scores, threshold, send_last=send_last), 1e-4)
            for threshold in thresholds
        ]
        assert together == pytest.approx(alone, rel=1e-12)


def test_each_place_has_points_of_its_own(experiment: TrainingExperiment) -> None:
    """Far away a draft is worth more: it is longer, and the speed there is what it was chosen by."""
    far = Timing(DRAFT_S, VERIFY_S, 1e-4, link_s=(0.2,) * (MAX_DRAFT + 1))
    far_tuning = replace(experiment, further=[(DeploymentKey("far", "digest"), far)]).tunings[1]
    points = {point.rule: point for point in far_tuning.thresholds("logistic")}
    assert set(points) == set(THRESHOLD_RULES)
    assert {(point.deployment, point.digest) for point in points.values()} == {("far", "digest")}
    near = {point.rule: point for point in experiment.tuning.thresholds("logistic")}
    assert points[PUBLISHED_RULE].max_draft > near[PUBLISHED_RULE].max_draft
    worth = far_tuning.worth("logistic", experiment.split.test)
    assert (worth.best.value or 0) >= (worth.published.value or 0) - 0.02
    assert (worth.oracle.value or 0) > (worth.best.value or 0) > 0.9


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_a_false_positive_rate_is_kept_by_every_judge(rate: float, offsets: Offsets) -> None:
    tuned = [
        contender
        for contender in line_up(offsets, OperatingPoint("fpr", rate))
        if contender.kind == "feature"
    ]
    assert len(tuned) == len(SCALES)
    for contender in tuned:
        assert contender.judge is not None
        labels, scores = labels_and_scores(offsets, contender)
        assert confusion(labels, scores, contender.judge.threshold).false_positive_rate <= rate
        assert contender.judge.longest == MAX_DRAFT


def test_the_best_length_is_the_fastest_on_the_validation_offsets(offsets: Offsets) -> None:
    speeds = {
        k: TIMING.speed(offsets, fixed_length(offsets, k), 0.0) for k in range(1, MAX_DRAFT + 1)
    }
    best = max(speeds, key=speeds.__getitem__)
    names = [contender.name for contender in line_up(offsets) if contender.kind == "fixed"]
    assert names == list(dict.fromkeys(f"fixed-k:k={k}" for k in (best, MAX_DRAFT)))


def test_scales_go_up_with_acceptance_and_back(offsets: Offsets) -> None:
    for name, scale in SCALES.items():
        values = offsets.features((name,))[:, 0, 0].astype(np.float64)
        scores = scale.to_score(values)
        assert 0 <= scores.min() <= scores.max() <= 1
        inner = scores[(scores > 1e-6) & (scores < 1)]
        assert [scale.to_value(score) for score in inner[:20]] == pytest.approx(
            values[(scores > 1e-6) & (scores < 1)][:20].tolist(), abs=1e-6
        )
        assert np.corrcoef(scores, offsets.matched > 0)[0, 1] > 0


def test_a_condition_is_told_in_the_unit_of_its_feature() -> None:
    assert SCALES["entropy"].condition("entropy", float(np.exp(-1.5))) == "entropy ≤ 1.5"
    assert SCALES["logit_std"].condition("logit_std", 0.75) == "logit_std ≥ 3"
    assert SCALES["margin"].condition("margin", 0.0) == "margin: everything passes"
    assert SCALES["margin"].condition("margin", NEVER) == "margin: nothing passes"


def test_leaders_are_chosen_before_the_test_prompts_are_looked_at(
    experiment: TrainingExperiment,
) -> None:
    retested = TrainingExperiment(
        experiment.settings, split_without_test(experiment), TIMING, experiment.trained
    )
    assert retested.leaders == experiment.leaders
    assert [c.name for c in retested.contenders] == [c.name for c in experiment.contenders]


def split_without_test(experiment: TrainingExperiment) -> Split:
    return replace(experiment.split, test=experiment.split.training)


def test_families_whose_package_is_missing_are_left_out_or_refused_before_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"lightgbm", "xgboost"} <= {*PredictorTrainingSettings().chosen_families}
    monkeypatch.setattr(base, "find_spec", lambda module: None if module == "lightgbm" else module)
    settings = PredictorTrainingSettings()
    assert set(settings.chosen_families) == set(families.all()) - {"lightgbm"}
    assert "pip install 'specbench-kit[trees]'" in settings.left_out_families["lightgbm"]
    assert PredictorTrainingSettings(families=("xgboost",)).left_out_families == {}
    with pytest.raises(SkitError, match="the package lightgbm is not installed: pip install"):
        PredictorTrainingSettings(families=("lightgbm",))
