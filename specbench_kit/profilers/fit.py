"""Ordinary least squares, and how far to trust it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import sums_of
from specbench_kit.profilers.base import COEFFICIENTS, Form, features, terms
from specbench_kit.profilers.workload import Configuration

Matrix = NDArray[np.float64]
FOLDS, RESAMPLES = 5, 1000
LEAST_TRAIN, LEAST_TEST = 15, 5
"""Configurations without which a fit would mean nothing."""


class TooFewConfigurations(SkitError):
    """Too few configurations to fit a profile."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Seconds of one configuration, and their coefficient of variation over runs, where there were several."""

    configuration: Configuration
    seconds: float
    variation: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """`estimates` are plain least squares, `coefficients` the same with none below 0; seconds by name."""

    form: Form
    estimates: Mapping[str, float]
    coefficients: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    cross_validation: Mapping[str, float]
    observations: Sequence[Observation]

    def predict(self, configuration: Configuration) -> float:
        """Seconds of one forward."""
        return float(sum(terms(self.form, self.coefficients, sums_of(configuration.rows))))

    def accuracy(self, part: str, regime: str | None = None) -> dict[str, float | None]:
        """Metrics on the configurations of a part and, if named, a regime."""
        chosen = [
            one
            for one in self.observations
            if one.configuration.part == part and regime in (None, one.configuration.regime)
        ]
        actual = np.array([one.seconds for one in chosen])
        return metrics(actual, np.array([self.predict(one.configuration) for one in chosen]), len(self.estimates) - 1)

    @property
    def regimes(self) -> list[str]:
        """In the order of the workload."""
        return list(dict.fromkeys(one.configuration.regime for one in self.observations))

    def shares(self, regime: str) -> dict[str, float]:
        """What part of the predicted time each term makes up on average."""
        rows = [one.configuration.rows for one in self.observations if one.configuration.regime == regime]
        parts = np.array([terms(self.form, self.coefficients, sums_of(row)) for row in rows])
        means = (parts / parts.sum(axis=1, keepdims=True)).mean(axis=0)
        return dict(zip(self.coefficients, map(float, means), strict=True))

    def describe(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        parts = ("train", "test")
        train, test = (self.accuracy(part) for part in parts)
        return {
            "form": self.form,
            "coefficients": dict(self.coefficients),
            "estimates": dict(self.estimates),
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "train": train,
            "test": test,
            "generalisation_gap": _difference(train["r2"], test["r2"]),
            "cross_validation": dict(self.cross_validation),
            "regimes": {
                name: {part: found for part in parts if (found := self.accuracy(part, name))["count"]}
                for name in self.regimes
            },
            "shares": {name: self.shares(name) for name in self.regimes},
        }


def fit(form: Form, observations: Sequence[Observation], seed: int = 0) -> Fit:
    """Fit on the training configurations."""
    train = [one for one in observations if one.configuration.part == "train"]
    _require_enough(len(train), len(observations) - len(train))
    matrix = np.array([features(form, one.configuration.rows) for one in train], np.float64)
    seconds = np.array([one.seconds for one in train])
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


def evaluated(form: Form, coefficients: Mapping[str, float], observations: Sequence[Observation]) -> Fit:
    """Coefficients that follow from something else: nothing was fitted, and the observations are their own."""
    exact = {name: (value, value) for name, value in coefficients.items()}
    return Fit(form, coefficients, coefficients, exact, {}, observations)


def least_squares(matrix: ArrayLike, seconds: ArrayLike) -> Matrix:
    """Coefficients of the columns; these are scaled first, since their magnitudes lie far apart."""
    columns = np.asarray(matrix, np.float64)
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0
    solution: Matrix = np.linalg.lstsq(columns / scale, np.asarray(seconds, np.float64), rcond=None)[0] / scale
    return solution


def non_negative(matrix: ArrayLike, seconds: ArrayLike) -> Matrix:
    """Least squares with no coefficient below 0: the best of the solutions on subsets of the columns."""
    columns, target = np.asarray(matrix, np.float64), np.asarray(seconds, np.float64)
    width = columns.shape[1]
    best, least = np.zeros(width), np.inf
    for count in range(width, 0, -1):
        for chosen in map(list, combinations(range(width), count)):
            solution = least_squares(columns[:, chosen], target)
            error = float(((columns[:, chosen] @ solution - target) ** 2).sum())
            if (solution >= 0).all() and error < least:
                best, least = np.zeros(width), error
                best[chosen] = solution
        if count == width and np.isfinite(least):
            break
    return best


def metrics(actual: Matrix, predicted: Matrix, predictors: int) -> dict[str, float | None]:
    """R2, adjusted R2, RMSE, MAE, MAPE, mean and largest error; `count` says of how many."""
    count = len(actual)
    if not count:
        return {"count": 0}
    error = predicted - actual
    r2 = _r2(actual, predicted)
    freedom = count - predictors - 1
    return {
        "count": count,
        "r2": r2,
        "adjusted_r2": 1 - (1 - r2) * (count - 1) / freedom if r2 is not None and freedom > 0 else None,
        "rmse_s": float(np.sqrt((error**2).mean())),
        "mae_s": float(np.abs(error).mean()),
        "mape": float((np.abs(error) / actual).mean()),
        "bias_s": float(error.mean()),
        "max_error_s": float(np.abs(error).max()),
        "mean_s": float(actual.mean()),
    }


def _r2(actual: Matrix, predicted: Matrix) -> float | None:
    spread = float(((actual - actual.mean()) ** 2).sum())
    return 1 - float(((predicted - actual) ** 2).sum()) / spread if spread else None


def _cross_validate(matrix: Matrix, seconds: Matrix, seed: int) -> dict[str, float]:
    """R2 of folds that were left out, drawn once."""
    order = np.random.default_rng(seed).permutation(len(seconds))
    scores = []
    for held in np.array_split(order, FOLDS):
        kept = np.setdiff1d(order, held)
        score = _r2(seconds[held], matrix[held] @ non_negative(matrix[kept], seconds[kept]))
        if score is not None:
            scores.append(score)
    return {"folds": FOLDS, "mean_r2": float(np.mean(scores)), "std_r2": float(np.std(scores)), "min_r2": min(scores)}


def _bootstrap(matrix: Matrix, seconds: Matrix, seed: int) -> Matrix:
    """95% percentile intervals of the plain least-squares coefficients, over resampled configurations."""
    random = np.random.default_rng(seed)
    drawn = random.integers(len(seconds), size=(RESAMPLES, len(seconds)))
    resampled = np.array([least_squares(matrix[rows], seconds[rows]) for rows in drawn])
    bounds: Matrix = np.quantile(resampled, (0.025, 0.975), axis=0)
    return bounds


def _require_enough(train: int, test: int) -> None:
    if train < LEAST_TRAIN or test < LEAST_TEST:
        raise TooFewConfigurations(
            f"too little was measured to fit a profile: {train} configurations to fit on and {test} to test on, of at "
            f"least {LEAST_TRAIN} and {LEAST_TEST}"
        )


def _difference(train: float | None, test: float | None) -> float | None:
    return None if train is None or test is None else train - test


def _named(names: Sequence[str], values: Matrix) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
