"""The quality of scores, and the choice of a threshold.

"Positive" means accepted, and a score at the threshold is positive. `labels` is bool [n] and
`scores` [n] throughout.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.confusion import Confusion
from specbench_kit.predictors.thresholds import NEVER

Labels = NDArray[np.bool_]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RocCurve:
    """The points of a ROC curve, from accepting no token to accepting all."""

    false_positive_rate: Scores
    recall: Scores
    threshold: Scores


@dataclass(frozen=True, slots=True)
class PrecisionRecallCurve:
    """The points of a precision-recall curve, from accepting all tokens to accepting none."""

    recall: Scores
    precision: Scores
    threshold: Scores


@dataclass(frozen=True, slots=True)
class Calibration:
    """The mean score and the share of accepted tokens in each bin of scores that is not empty."""

    mean_score: Scores
    accepted_share: Scores
    count: NDArray[np.int64]

    @property
    def expected_error(self) -> float:
        """Return the expected calibration error: the mean distance of the two, weighted by the
        count.
        """
        distance = np.abs(self.mean_score - self.accepted_share)
        return float((distance * self.count).sum() / self.count.sum())


def confusion(labels: Labels, scores: Scores, threshold: float) -> Confusion:
    """Return the counts of right and wrong predictions at a threshold."""
    _check(labels, scores)
    positive = scores >= threshold
    counts = (~positive & ~labels, positive & ~labels, ~positive & labels, positive & labels)
    return Confusion(*(int(count.sum()) for count in counts))


def auc(labels: Labels, scores: Scores) -> float:
    """Return the area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    _check(labels, scores)
    return float(roc_auc_score(labels, scores))


def roc(labels: Labels, scores: Scores, *, drop_intermediate: bool = True) -> RocCurve:
    """Return the ROC curve, by default without points that lie on a line between others."""
    from sklearn.metrics import roc_curve

    _check(labels, scores)
    rate, recall, threshold = roc_curve(labels, scores, drop_intermediate=drop_intermediate)
    return RocCurve(rate, recall, np.where(np.isinf(threshold), NEVER, threshold))


def precision_recall(labels: Labels, scores: Scores) -> PrecisionRecallCurve:
    """Return the precision-recall curve; its last point, recall 0, has the threshold NEVER."""
    from sklearn.metrics import precision_recall_curve

    _check(labels, scores)
    precision, recall, threshold = precision_recall_curve(labels, scores, drop_intermediate=True)
    return PrecisionRecallCurve(recall, precision, np.append(threshold, NEVER))


def calibration(labels: Labels, scores: Scores, bins: int = 10) -> Calibration:
    """Return the calibration over `bins` bins of equal width in 0..1."""
    _check(labels, scores)
    bin_of = np.minimum((scores * bins).astype(int), bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    filled = count > 0
    totals = [
        np.bincount(bin_of, weights, bins)[filled] for weights in (scores, labels.astype(float))
    ]
    return Calibration(totals[0] / count[filled], totals[1] / count[filled], count[filled])


class Classification(Struct):
    """How well scores separate accepted from rejected tokens: the figures of WISP's Tables 4 and
    10.
    """

    auc: Annotated[float, Meta(description="area under the ROC curve, 0 to 1")]
    expected_calibration_error: Annotated[
        float,
        Meta(
            description="mean distance of mean score and share of accepted tokens over bins of scores, "
            "weighted by their tokens, 0 to 1"
        ),
    ]
    accuracy: Annotated[
        float, Meta(description="share of all tokens that are predicted right, 0 to 1")
    ]
    recall: Annotated[
        float,
        Meta(description="share of the accepted tokens that are predicted to be accepted, 0 to 1"),
    ]
    specificity: Annotated[
        float,
        Meta(description="share of the rejected tokens that are predicted to be rejected, 0 to 1"),
    ]
    false_positive_rate: Annotated[
        float,
        Meta(description="share of the rejected tokens that are predicted to be accepted, 0 to 1"),
    ]
    balanced_accuracy: Annotated[float, Meta(description="mean of recall and specificity, 0 to 1")]
    confusion: Annotated[Confusion, Meta(description="numbers of tokens by prediction and outcome")]


def summarise(labels: Labels, scores: Scores, threshold: float) -> Classification:
    """Return the figures of WISP's Tables 4 and 10."""
    counts = confusion(labels, scores, threshold)
    return Classification(
        auc=auc(labels, scores),
        expected_calibration_error=calibration(labels, scores).expected_error,
        accuracy=counts.accuracy,
        recall=counts.recall,
        specificity=counts.specificity,
        false_positive_rate=counts.false_positive_rate,
        balanced_accuracy=counts.balanced_accuracy,
        confusion=counts,
    )


def by_fpr(labels: Labels, scores: Scores, target: float) -> float:
    """Return the threshold with the highest recall among those with a false positive rate of at
    most `target`.
    """
    if not 0 <= target <= 1:
        raise SkitError(f"the target false positive rate must lie in 0..1, not {target}")
    curve = roc(labels, scores, drop_intermediate=False)
    return _below(scores, float(curve.threshold[curve.false_positive_rate <= target][-1]))


def by_balanced_accuracy(labels: Labels, scores: Scores) -> float:
    """Return the threshold with the highest balanced accuracy; of equals, the highest threshold."""
    curve = roc(labels, scores, drop_intermediate=False)
    return _below(
        scores, float(curve.threshold[np.argmax(curve.recall - curve.false_positive_rate)])
    )


def candidate_thresholds(scores: Scores, count: int = 50) -> list[float]:
    """Return at most `count` + 1 thresholds, ascending, at about equal quantiles of the scores;
    from all to none.
    """
    levels = np.quantile(scores, np.arange(1, count) / count, method="higher")
    return sorted({0.0, *(_below(scores, float(level)) for level in levels), NEVER})


def choose_threshold(
    candidates: Iterable[float], objective: Callable[[float], float]
) -> tuple[float, float]:
    """Return the candidate with the greatest objective, and its objective; of equals, the first
    candidate.
    """
    values = {threshold: objective(threshold) for threshold in candidates}
    if not values or any(math.isnan(value) for value in values.values()):
        raise SkitError(
            "no threshold can be chosen: the objective is not a number; give more validation prompts"
        )
    return max(values.items(), key=lambda item: item[1])


def _below(scores: Scores, threshold: float) -> float:
    """Return the value midway from a threshold to the next lower score, so that rounding of scores
    decides nothing.
    """
    lower = scores[scores < threshold - 1e-9]
    return threshold if threshold == NEVER else (threshold + float(lower.max(initial=0.0))) / 2


def _check(labels: Labels, scores: Scores) -> None:
    if labels.dtype != np.bool_ or labels.shape != scores.shape or labels.all() or not labels.any():
        raise SkitError(
            "scores cannot be judged: they need one bool label each, and accepted as well as rejected tokens"
        )
    if not np.isfinite(scores).all():
        raise SkitError("scores cannot be judged: one of them is not a number")
