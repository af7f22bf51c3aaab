"""Predictors as their own libraries score with them, for WISP's Table 11; the kit's scorers need none of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import Examples
from specbench_kit.predictors.latency import time_scores

HIDDEN = (512, 128, 64)
"""Widths of the MLP's layers in WISP's search space (Table 9)."""
FIXED = {"n_jobs": 1, "random_state": 0}


class LibraryScorer:
    """A classifier with scikit-learn's interface that scores one sample at a time, as a drafting loop asks for it."""

    def __init__(self, classifier: Any) -> None:
        self._classifier = classifier

    def score(self, features: Sequence[float], /) -> float:
        """Return the probability that a token is accepted."""
        return float(self._classifier.predict_proba(np.array([features], np.float32))[0, 1])


def time_library(family: str, train: Examples, test: Examples, trials: int) -> dict[str, float]:
    """Return statistics of the seconds of one score by the family's library, trained with that library's defaults."""
    if family not in CLASSIFIERS:
        raise SkitError(f"no library of the family '{family}' is timed; known: {', '.join(CLASSIFIERS)}")
    classifier = CLASSIFIERS[family]()
    classifier.fit(train.features, train.labels)
    return time_scores(LibraryScorer(classifier), test.features[:1000].tolist(), trials)


def _mlp() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(HIDDEN, early_stopping=True, random_state=0)


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(**FIXED)


def _xgboost() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(**FIXED)


def _lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(**FIXED, verbosity=-1)


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "mlp": _mlp,
    "random_forest": _forest,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
}
