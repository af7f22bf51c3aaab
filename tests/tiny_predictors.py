"""A predictor made by hand, for tests of what uses one."""

from pathlib import Path

import numpy as np

from specbench_kit.predictors.artefact import Predictor, save
from specbench_kit.predictors.base import Scaler
from specbench_kit.predictors.dense import Dense
from specbench_kit.predictors.library import PairHashes

PAIR = PairHashes("target", "draft")


def confidence_predictor(folder: Path, pair: PairHashes = PAIR, threshold: float = 0.5) -> Path:
    """Save a logistic predictor whose score rises with the confidence alone, through 0.5 at a confidence of 0.5."""
    scorer = Dense(
        Scaler(np.zeros(4), np.ones(4)), [(np.array([[8.0, 0.0, 0.0, 0.0]]), np.array([-4.0]))]
    )
    features = ("confidence", "entropy", "margin", "logit_std")
    save(folder, Predictor("logistic", scorer, features, threshold, "by hand", pair))
    return folder
