"""Logistic regression, the simplest family."""

from typing import ClassVar

import numpy as np

from specbench_kit.predictors.base import (
    Examples,
    Params,
    PredictorFamily,
    Scaler,
    Scorer,
    Space,
    families,
)
from specbench_kit.predictors.dense import Dense


@families.register("logistic")
class Logistic(PredictorFamily):
    """Logistic regression with L2 regularisation; its training is convex and needs no early
    stopping.
    """

    summary = "logistic regression on standardised features"
    source = "Cox 1958"
    space: ClassVar[Space] = {"C": (1.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0, 10.0, 100.0)}

    def train(self, train: Examples, _valid: Examples, params: Params, _seed: int, /) -> Scorer:
        from sklearn.linear_model import LogisticRegression

        scaler = Scaler.of(train.features)
        model = LogisticRegression(C=params["C"], max_iter=1000).fit(
            scaler(train.features), train.labels
        )
        return Dense(
            scaler, [(model.coef_.astype(np.float64), model.intercept_.astype(np.float64))]
        )

    def scorer_type(self) -> type[Scorer]:
        return Dense
