"""Fits latency models by least squares, and measures how far to trust the fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike, NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import RoundedModel, sums_of
from specbench_kit.profilers.base import COEFFICIENTS, Form, features, terms
from specbench_kit.profilers.workload import Configuration

Matrix = NDArray[np.float64]
FOLDS = 5
RESAMPLES = 1000
MIN_TRAIN = 15
MIN_TEST = 5
"""The least numbers of configurations for which a fit means anything."""


class TooFewConfigurations(SkitError):
    """The error if too few configurations were timed to fit a profile."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The seconds of one configuration, and their coefficient of variation over runs if there were
    several.
    """

    configuration: Configuration
    seconds: float
    variation: float | None = None


class Accuracy(Struct):
    """How far predicted times of steps are off."""

    count: Annotated[int, Meta(description="predictions")]
    r2: Annotated[
        float | None,
        Meta(description="R2 of the predictions; null without predictions, and of equal times"),
    ] = None
    adjusted_r2: Annotated[
        float | None,
        Meta(
            description="R2 adjusted for the number of coefficients; null without R2, and for too few "
            "predictions"
        ),
    ] = None
    rmse_s: Annotated[
        float | None,
        Meta(description="root of the mean squared error in seconds; null without predictions"),
    ] = None
    mae_s: Annotated[
        float | None, Meta(description="mean absolute error in seconds; null without predictions")
    ] = None
    mape: Annotated[
        float | None,
        Meta(description="mean of absolute error / measured time; null without predictions"),
    ] = None
    bias_s: Annotated[
        float | None,
        Meta(description="mean of predicted - measured seconds; null without predictions"),
    ] = None
    max_error_s: Annotated[
        float | None,
        Meta(description="largest absolute error in seconds; null without predictions"),
    ] = None
    mean_s: Annotated[
        float | None, Meta(description="mean measured seconds; null without predictions")
    ] = None


class CrossValidation(Struct, omit_defaults=True):
    """Predictions of folds that were left out of the fit in turn; none of a profile that was
    derived.
    """

    folds: Annotated[int, Meta(description="number of folds; 0 for a profile that was derived")] = 0
    mean_r2: Annotated[
        float | None, Meta(description="mean R2 over folds; null for a profile that was derived")
    ] = None
    std_r2: Annotated[
        float | None,
        Meta(
            description="standard deviation of R2 over folds; null for a profile that was derived"
        ),
    ] = None
    min_r2: Annotated[
        float | None, Meta(description="least R2 of a fold; null for a profile that was derived")
    ] = None


class FitDescription(Struct):
    """A fit as files hold it: its coefficients and their intervals, its errors, and the parts of
    predicted times.
    """

    form: Annotated[
        Form, Meta(description="form of the latency model, which its coefficients belong to")
    ]
    coefficients: Annotated[
        dict[str, float], Meta(description="coefficients by name, fitted with none below 0")
    ]
    estimates: Annotated[
        dict[str, float], Meta(description="the same by plain least squares, which may be below 0")
    ]
    intervals: Annotated[
        dict[str, list[float]],
        Meta(description="95% intervals of 'estimates' by name, by resampling configurations"),
    ]
    train: Annotated[Accuracy, Meta(description="errors on the configurations that were fitted")]
    test: Annotated[Accuracy, Meta(description="errors on the other configurations")]
    generalisation_gap: Annotated[
        float | None, Meta(description="R2 of 'train' - R2 of 'test'; null if either is not known")
    ]
    cross_validation: Annotated[
        CrossValidation,
        Meta(description="errors on folds of 'train' that were left out of the fit in turn"),
    ]
    regimes: Annotated[
        dict[str, dict[str, Accuracy]],
        Meta(description="errors by regime of the workload, then by part ('train' or 'test')"),
    ]
    shares: Annotated[
        dict[str, dict[str, float]],
        Meta(description="mean share of each part of the predicted time, by regime"),
    ]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted latency model: seconds by the name of each coefficient.

    `estimates` are plain least squares, `coefficients` least squares with none below 0. `derived` is the latency model
    itself where nothing was fitted, and the form is no sum.
    """

    form: Form
    estimates: Mapping[str, float]
    coefficients: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    cross_validation: CrossValidation
    observations: Sequence[Observation]
    derived: RoundedModel | KernelModel | None = None

    def predict(self, configuration: Configuration) -> float:
        """Return the predicted seconds of one forward."""
        return sum(self.parts(configuration).values())

    def parts(self, configuration: Configuration) -> dict[str, float]:
        """Return the predicted seconds of one forward by coefficient, or by what takes them if
        nothing was fitted.
        """
        sums = sums_of(configuration.rows)
        if self.derived is not None:
            return self.derived.parts(sums)
        return dict(
            zip(
                self.coefficients,
                map(float, terms(self.form, self.coefficients, sums)),
                strict=True,
            )
        )

    def accuracy(self, part: str, regime: str | None = None) -> Accuracy:
        """Return the metrics on the configurations of a part, or only on those of one regime."""
        chosen = [
            observation
            for observation in self.observations
            if observation.configuration.part == part
            and regime in (None, observation.configuration.regime)
        ]
        actual = np.array([observation.seconds for observation in chosen])
        predicted = np.array([self.predict(observation.configuration) for observation in chosen])
        return metrics(actual, predicted, len(self.estimates) - 1)

    @property
    def regimes(self) -> list[str]:
        """The regimes, in the order of the workload."""
        return list(
            dict.fromkeys(observation.configuration.regime for observation in self.observations)
        )

    def shares(self, regime: str) -> dict[str, float]:
        """Return the average share of each term in the predicted time."""
        configurations = [observation.configuration for observation in self.observations]
        parts = [
            self.parts(configuration)
            for configuration in configurations
            if configuration.regime == regime
        ]
        seconds = np.array([list(part.values()) for part in parts])
        means = (seconds / seconds.sum(axis=1, keepdims=True)).mean(axis=0)
        return dict(zip(parts[0], map(float, means), strict=True))

    def describe(self) -> FitDescription:
        """Return the whole fit for files."""
        train = self.accuracy("train")
        test = self.accuracy("test")
        regimes: dict[str, dict[str, Accuracy]] = {}
        for name in self.regimes:
            by_part = {part: self.accuracy(part, name) for part in ("train", "test")}
            regimes[name] = {part: accuracy for part, accuracy in by_part.items() if accuracy.count}
        return FitDescription(
            form=self.form,
            coefficients=dict(self.coefficients),
            estimates=dict(self.estimates),
            intervals={name: list(bounds) for name, bounds in self.intervals.items()},
            train=train,
            test=test,
            generalisation_gap=None if train.r2 is None or test.r2 is None else train.r2 - test.r2,
            cross_validation=self.cross_validation,
            regimes=regimes,
            shares={name: self.shares(name) for name in self.regimes},
        )


def fit(form: Form, observations: Sequence[Observation], seed: int = 0) -> Fit:
    """Return the fit on the training configurations; raise TooFewConfigurations if they are too
    few.
    """
    train = [
        observation for observation in observations if observation.configuration.part == "train"
    ]
    test_count = len(observations) - len(train)
    if len(train) < MIN_TRAIN or test_count < MIN_TEST:
        raise TooFewConfigurations(
            f"too little was measured to fit a profile: {len(train)} configurations to fit on and {test_count} to test "
            f"on, of at least {MIN_TRAIN} and {MIN_TEST}"
        )
    matrix = np.array(
        [features(form, observation.configuration.rows) for observation in train], np.float64
    )
    seconds = np.array([observation.seconds for observation in train])
    names = COEFFICIENTS[form]
    low, high = _bootstrap(matrix, seconds, seed)
    return Fit(
        form=form,
        estimates=_named(names, least_squares(matrix, seconds)),
        coefficients=_named(names, non_negative(matrix, seconds)),
        intervals={name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)},
        cross_validation=_cross_validate(matrix, seconds, seed),
        observations=observations,
    )


def evaluated(
    form: Form,
    coefficients: Mapping[str, float],
    observations: Sequence[Observation],
    derived: RoundedModel | KernelModel,
) -> Fit:
    """Return coefficients that were not fitted but derived, as a fit; the observations are their
    own predictions.
    """
    exact = {name: (value, value) for name, value in coefficients.items()}
    return Fit(form, coefficients, coefficients, exact, CrossValidation(), observations, derived)


def least_squares(matrix: ArrayLike, seconds: ArrayLike) -> Matrix:
    """Return the coefficients of the columns, which are scaled first, since their magnitudes lie
    far apart.
    """
    columns = np.asarray(matrix, np.float64)
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0
    solution: Matrix = (
        np.linalg.lstsq(columns / scale, np.asarray(seconds, np.float64), rcond=None)[0] / scale
    )
    return solution


def non_negative(matrix: ArrayLike, seconds: ArrayLike) -> Matrix:
    """Return the least squares with no coefficient below 0: the best of the solutions on subsets of
    the columns.
    """
    columns = np.asarray(matrix, np.float64)
    target = np.asarray(seconds, np.float64)
    width = columns.shape[1]
    best = np.zeros(width)
    least_error = np.inf
    for count in range(width, 0, -1):
        for chosen in map(list, combinations(range(width), count)):
            solution = least_squares(columns[:, chosen], target)
            error = float(((columns[:, chosen] @ solution - target) ** 2).sum())
            if (solution >= 0).all() and error < least_error:
                best = np.zeros(width)
                least_error = error
                best[chosen] = solution
        # If the plain solution has no coefficient below 0, no subset of the columns fits better.
        if count == width and np.isfinite(least_error):
            break
    return best


def metrics(actual: Matrix, predicted: Matrix, predictors: int) -> Accuracy:
    """Return R2, adjusted R2, RMSE, MAE, MAPE, mean and largest error of the predictions."""
    count = len(actual)
    if not count:
        return Accuracy(0)
    error = predicted - actual
    r2 = _r2(actual, predicted)
    freedom = count - predictors - 1
    return Accuracy(
        count=count,
        r2=r2,
        adjusted_r2=1 - (1 - r2) * (count - 1) / freedom
        if r2 is not None and freedom > 0
        else None,
        rmse_s=float(np.sqrt((error**2).mean())),
        mae_s=float(np.abs(error).mean()),
        mape=float((np.abs(error) / actual).mean()),
        bias_s=float(error.mean()),
        max_error_s=float(np.abs(error).max()),
        mean_s=float(actual.mean()),
    )


def _r2(actual: Matrix, predicted: Matrix) -> float | None:
    spread = float(((actual - actual.mean()) ** 2).sum())
    return 1 - float(((predicted - actual) ** 2).sum()) / spread if spread else None


def _cross_validate(matrix: Matrix, seconds: Matrix, seed: int) -> CrossValidation:
    """Return the R2 of folds that were left out of the fit; the folds are drawn once."""
    order = np.random.default_rng(seed).permutation(len(seconds))
    scores = []
    for fold in np.array_split(order, FOLDS):
        fitted = np.setdiff1d(order, fold)
        score = _r2(seconds[fold], matrix[fold] @ non_negative(matrix[fitted], seconds[fitted]))
        if score is not None:
            scores.append(score)
    return CrossValidation(FOLDS, float(np.mean(scores)), float(np.std(scores)), min(scores))


def _bootstrap(matrix: Matrix, seconds: Matrix, seed: int) -> Matrix:
    """Return the bounds of 95% percentile intervals of the least-squares coefficients, by
    resampling rows.
    """
    random = np.random.default_rng(seed)
    drawn = random.integers(len(seconds), size=(RESAMPLES, len(seconds)))
    resampled = np.array([least_squares(matrix[rows], seconds[rows]) for rows in drawn])
    bounds: Matrix = np.quantile(resampled, (0.025, 0.975), axis=0)
    return bounds


def _named(names: Sequence[str], values: Matrix) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
