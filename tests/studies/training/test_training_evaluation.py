"""What is said of contenders on the test prompts."""

from dataclasses import astuple
from functools import partial

import numpy as np
import pytest
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.studies.training.contenders import (
    PairedSums,
    ThresholdJudge,
    family_of,
    feature_score,
)
from specbench_kit.studies.training.evaluation import TrainingExperiment, train, waste_and_bound
from specbench_kit.studies.training.examples import extract, split_by_prompt
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.studies.training.rounds import play
from specbench_kit.studies.training.run import summarise
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing
from specbench_kit.studies.training.wording import RatioEstimate, RepeatedRatio, Repeats

TIMING = Timing(DRAFT_S, VERIFY_S, 1e-4)
SETTINGS = PredictorTrainingSettings(families=("logistic", "xgboost"), trials=2)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> TrainingExperiment:
    offsets = read_offsets(
        write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(30))
    )
    return train(SETTINGS, split_by_prompt(offsets, 0), TIMING, lambda *_: None)


def test_the_gap_runs_from_the_best_fixed_length_to_the_oracle(
    experiment: TrainingExperiment,
) -> None:
    decoding = experiment.evaluation.decoding()
    fixed, oracle = decoding[experiment.leaders.fixed], decoding["oracle"]
    assert fixed.gap_closed == RatioEstimate(0.0, None)
    assert oracle.gap_closed.value == pytest.approx(1.0)
    assert oracle.regret == RatioEstimate(0.0, None)
    for metrics in decoding.values():
        assert metrics.throughput <= oracle.throughput * (1 + 1e-9)
        gap = (metrics.throughput - fixed.throughput) / (oracle.throughput - fixed.throughput)
        assert metrics.gap_closed.value == pytest.approx(gap)
        assert metrics.regret.value == pytest.approx(1 - metrics.throughput / oracle.throughput)


def test_ratios_are_those_of_the_speeds_and_lie_in_their_intervals(
    experiment: TrainingExperiment,
) -> None:
    decoding = experiment.evaluation.decoding()
    for metrics in decoding.values():
        for against, key in (
            (experiment.leaders.fixed, "against_best_fixed"),
            ("autoregressive", "speedup"),
        ):
            ratio = getattr(metrics, key)
            assert ratio.value == pytest.approx(metrics.throughput / decoding[against].throughput)
            low, high = (
                ratio.interval or [ratio.value] * 2
            )  # none where the contender is held against itself
            assert low <= ratio.value <= high


def test_every_contender_commits_the_whole_output(experiment: TrainingExperiment) -> None:
    for metrics in experiment.evaluation.decoding().values():
        assert metrics.tokens == len(experiment.split.test)
        assert metrics.wasted_tokens == metrics.drafted - metrics.accepted
        assert metrics.wdt == pytest.approx(metrics.wasted_tokens * DRAFT_S)
        assert metrics.wdt_paper == pytest.approx((metrics.submitted - metrics.accepted) * DRAFT_S)


def test_the_oracle_sends_nothing_that_is_rejected(experiment: TrainingExperiment) -> None:
    oracle = experiment.evaluation.decoding()["oracle"]
    assert (oracle.acceptance_rate, oracle.wdt_paper) == (1.0, 0.0)


def test_a_classifier_pays_for_statistics_and_score(experiment: TrainingExperiment) -> None:
    for contender in experiment.contenders:
        if contender.kind in ("classifier", "variant"):
            assert (
                contender.policy_s
                == TIMING.statistics_s + experiment.trained[family_of(contender)].latency["median"]
            )
        else:
            assert contender.policy_s == (TIMING.statistics_s if contender.judge else 0.0)


def test_the_attribution_takes_away_one_shortcoming_at_a_time(
    experiment: TrainingExperiment,
) -> None:
    decoding, without = experiment.evaluation.decoding(), experiment.evaluation.attribution()
    leader, sending = (
        experiment.leaders.classifier,
        f"{experiment.leaders.classifier},send_last=true",
    )
    assert decoding[leader].throughput <= without.deciding_for_free
    assert without.never_wrong < decoding["oracle"].throughput
    assert without.last_token_sent == pytest.approx(decoding[sending].throughput)


def test_classification_counts_every_test_example(experiment: TrainingExperiment) -> None:
    labels = extract(experiment.split.test).labels
    figures = experiment.evaluation.classification()
    assert set(figures) == {contender.name for contender in experiment.line_up if contender.judge}
    for figure in figures.values():
        assert sum(astuple(figure.confusion)) == len(labels)
        assert figure.confusion.true_positives + figure.confusion.false_negatives == labels.sum()


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9, 1.1])
@pytest.mark.parametrize("longest", [1, 4, MAX_DRAFT])
def test_theorem_1_bounds_the_measured_waste(
    threshold: float, longest: int, experiment: TrainingExperiment
) -> None:
    offsets = experiment.split.training
    for name in ("confidence", "entropy", "logit_std"):
        judge = ThresholdJudge(partial(feature_score, name=name), longest, threshold)
        bound = waste_and_bound(offsets, play(offsets, judge.plan(offsets)), judge)
        assert 0 <= bound.wasted_per_round <= bound.bound + 1e-12
        assert bound.bound == pytest.approx(sum(term.term for term in bound.terms))


def test_theorem_1_is_tight_for_a_rule_that_lets_all_pass(experiment: TrainingExperiment) -> None:
    offsets = experiment.split.training
    judge = ThresholdJudge(partial(feature_score, name="confidence"), MAX_DRAFT, 0.0)
    rounds = play(offsets, judge.plan(offsets))
    bound = waste_and_bound(offsets, rounds, judge)
    rejected = offsets.matched[rounds.offset]
    assert bound.wasted_per_round == pytest.approx(bound.bound)
    assert bound.bound == pytest.approx((MAX_DRAFT - rejected).mean())


def test_intervals_are_paired_over_prompts() -> None:
    """Twice the seconds on every prompt is a ratio of exactly two, without an interval, however prompts differ."""
    seconds = np.random.default_rng(0).lognormal(0, 2, 30)
    paired = PairedSums({("a", "seconds"): seconds, ("b", "seconds"): 2 * seconds})
    ratio = paired.estimate(lambda get: get("b", "seconds") / get("a", "seconds"))
    assert (ratio.value, ratio.interval) == (pytest.approx(2), None)
    noisy = PairedSums(
        {("a", "seconds"): seconds, ("b", "seconds"): seconds * np.linspace(1.5, 2.5, 30)}
    )
    low, high = noisy.estimate(lambda get: get("b", "seconds") / get("a", "seconds")).interval or (
        0,
        0,
    )
    assert 1.5 < low < 2 < high < 2.5


def test_a_quantity_without_meaning_or_with_one_prompt_has_no_interval() -> None:
    nothing = PairedSums({("a", "x"): np.zeros(5)}).estimate(
        lambda get: get("a", "x") / get("a", "x")
    )
    assert (nothing.value, nothing.interval) == (None, None)
    single = PairedSums({("a", "x"): np.ones(1)}).estimate(lambda get: get("a", "x"))
    assert (single.value, single.interval) == (1.0, None)


def test_the_summary_repeats_for_one_seed_apart_from_measured_latency(
    experiment: TrainingExperiment,
) -> None:
    again = train(SETTINGS, experiment.split, TIMING, lambda *_: None)
    for name, trained in experiment.trained.items():
        assert trained.search.trials == again.trained[name].search.trials
        np.testing.assert_array_equal(
            trained.score(experiment.split.test), again.trained[name].score(experiment.split.test)
        )


def test_the_summary_describes_the_data(experiment: TrainingExperiment) -> None:
    equal_speed = RepeatedRatio(1.0, None, [1.0])
    summary = summarise(experiment, Repeats(1, equal_speed, equal_speed, equal_speed, equal_speed))
    assert [part.prompts for part in summary.split.parts.values()] == [18, 6, 6]
    curve = summary.acceptance_by_feature["confidence"]
    assert sum(point.count for point in curve) == summary.split.training.examples
    assert curve[0].accepted < curve[-1].accepted
    names, matrix = summary.correlations.names, summary.correlations.matrix
    assert matrix[names.index("confidence")][names.index("accepted")] > 0.3
    assert matrix[names.index("entropy")][names.index("accepted")] < -0.3


def test_one_class_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    from dataclasses import replace

    traces = [replace(trace, drafted=trace.drafted * 0 + 30_000) for trace in made_requests(6)]
    offsets = read_offsets(write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", traces))
    with pytest.raises(
        SkitError,
        match="training examples hold 0 accepted and 160 rejected tokens: both are needed",
    ):
        train(SETTINGS, split_by_prompt(offsets, 0), TIMING, lambda *_: None)
