import numpy as np
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.scoring import (
    NEVER,
    Confusion,
    auc,
    by_balanced_accuracy,
    by_fpr,
    calibration,
    candidate_thresholds,
    choose_threshold,
    confusion,
    precision_recall,
    roc,
    summarise,
)

GENERATOR = np.random.default_rng(5)
LABELS = GENERATOR.random(400) < 0.6
SCORES = np.round(np.clip(0.35 * LABELS + GENERATOR.normal(0.4, 0.25, 400), 0, 1), 2)


def test_the_published_confusion_of_the_mlp_gives_the_published_rates() -> None:
    """WISP's MLP, true negatives to true positives; the paper averages rounded rates to .6881."""
    counts = Confusion(92, 68, 112, 451)
    rates = (counts.accuracy, counts.recall, counts.specificity, counts.balanced_accuracy)
    assert rates == pytest.approx((0.7510, 0.8011, 0.5750, 0.6881), abs=1e-4)
    assert counts.false_positive_rate == pytest.approx(0.425)


def test_a_score_at_the_threshold_counts_as_accepted() -> None:
    labels, scores = np.array([True, True, False, False]), np.array([0.9, 0.5, 0.5, 0.1])
    assert confusion(labels, scores, 0.5) == Confusion(1, 1, 0, 2)
    assert confusion(labels, scores, NEVER) == Confusion(2, 0, 2, 0)
    assert confusion(labels, scores, 0.0) == Confusion(0, 2, 0, 2)


def test_auc_is_the_share_of_pairs_in_order() -> None:
    accepted, rejected = SCORES[LABELS][:, None], SCORES[~LABELS][None]
    assert auc(LABELS, SCORES) == pytest.approx(
        ((accepted > rejected) + 0.5 * (accepted == rejected)).mean()
    )


def test_curves_hold_what_their_thresholds_give() -> None:
    curve = roc(LABELS, SCORES)
    assert (curve.false_positive_rate[0], curve.recall[0], curve.threshold[0]) == (0, 0, NEVER)
    assert (curve.false_positive_rate[-1], curve.recall[-1]) == (1, 1)
    for rate, recall, threshold in zip(
        curve.false_positive_rate, curve.recall, curve.threshold, strict=True
    ):
        counts = confusion(LABELS, SCORES, threshold)
        assert (counts.false_positive_rate, counts.recall) == (
            pytest.approx(rate),
            pytest.approx(recall),
        )
    points = precision_recall(LABELS, SCORES)
    for recall, precision, threshold in zip(
        points.recall[:-1], points.precision, points.threshold, strict=False
    ):
        counts = confusion(LABELS, SCORES, threshold)
        positives = counts.true_positives + counts.false_positives
        assert (counts.recall, counts.true_positives / positives) == (
            pytest.approx(recall),
            pytest.approx(precision),
        )
    assert (points.recall[-1], points.threshold[-1]) == (0, NEVER)


def test_calibration_compares_mean_score_and_share_in_each_filled_bin() -> None:
    labels = np.array([False, False, True, True, True, False])
    scores = np.array([0.05, 0.15, 0.12, 0.95, 1.0, 0.95])
    bins = calibration(labels, scores)
    np.testing.assert_allclose(bins.mean_score, [0.05, 0.135, 2.9 / 3])
    np.testing.assert_allclose(bins.accepted_share, [0, 0.5, 2 / 3])
    assert bins.count.tolist() == [1, 2, 3]
    assert bins.expected_error == pytest.approx((0.05 + 2 * 0.365 + 3 * 0.3) / 6)


def test_scores_that_are_the_true_probabilities_are_calibrated() -> None:
    scores = GENERATOR.random(50_000)
    assert calibration(GENERATOR.random(50_000) < scores, scores).expected_error < 0.02


@pytest.mark.parametrize("target", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_a_target_fpr_is_kept_with_the_most_recall(target: float) -> None:
    counts = confusion(LABELS, SCORES, by_fpr(LABELS, SCORES, target))
    assert counts.false_positive_rate <= target
    alternatives = [
        confusion(LABELS, SCORES, threshold) for threshold in [*np.unique(SCORES), NEVER]
    ]
    assert counts.recall == max(
        alternative.recall
        for alternative in alternatives
        if alternative.false_positive_rate <= target
    )


def test_an_fpr_that_only_accepting_nothing_reaches_gives_never() -> None:
    assert by_fpr(np.array([True, False]), np.array([1.0, 1.0]), 0.0) == NEVER
    with pytest.raises(SkitError, match=r"must lie in 0..1, not 1.5"):
        by_fpr(LABELS, SCORES, 1.5)


def test_balanced_accuracy_is_the_best_that_any_threshold_gives() -> None:
    chosen = confusion(LABELS, SCORES, by_balanced_accuracy(LABELS, SCORES)).balanced_accuracy
    assert chosen == max(
        confusion(LABELS, SCORES, threshold).balanced_accuracy for threshold in np.unique(SCORES)
    )


def test_thresholds_lie_between_scores() -> None:
    for threshold in (by_fpr(LABELS, SCORES, 0.2), by_balanced_accuracy(LABELS, SCORES)):
        assert np.abs(SCORES - threshold).min() > 1e-3


def test_candidates_run_from_all_to_nothing_in_even_steps() -> None:
    candidates = candidate_thresholds(SCORES, count=10)
    assert candidates == sorted(set(candidates))
    assert (candidates[0], candidates[-1]) == (0.0, NEVER)
    shares = [(threshold <= SCORES).mean() for threshold in candidates]
    assert (shares[0], shares[-1]) == (1, 0)
    assert max(-np.diff(shares)) < 0.2


def test_the_objective_chooses_the_first_of_the_best() -> None:
    assert choose_threshold([0.1, 0.4, 0.6, 0.9], lambda threshold: -abs(threshold - 0.5)) == (
        0.4,
        pytest.approx(-0.1),
    )
    with pytest.raises(SkitError, match="no threshold can be chosen"):
        choose_threshold([], lambda threshold: threshold)
    with pytest.raises(SkitError, match="no threshold can be chosen"):
        choose_threshold([0.5], lambda _: float("nan"))


def test_the_summary_holds_every_rate() -> None:
    summary = summarise(LABELS, SCORES, 0.5)
    counts = confusion(LABELS, SCORES, 0.5)
    assert summary.auc == auc(LABELS, SCORES)
    assert summary.confusion.true_positives == counts.true_positives
    assert summary.balanced_accuracy == counts.balanced_accuracy
    assert 0 <= summary.expected_calibration_error <= 1


def test_scores_without_two_classes_or_that_are_not_numbers_are_refused() -> None:
    for labels, scores in (
        (LABELS[:10], SCORES),
        (LABELS | True, SCORES),
        (LABELS.astype(int), SCORES),
    ):
        with pytest.raises(
            SkitError, match="one bool label each, and accepted as well as rejected"
        ):
            auc(labels, scores)
    with pytest.raises(SkitError, match="one of them is not a number"):
        roc(LABELS, np.where(LABELS, np.nan, SCORES))
