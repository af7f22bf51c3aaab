"""The place of a token in its draft, as a predictor's feature: 1 for the first, alone and in a whole chain."""

import numpy as np
import pytest
from tiny_predictors import PAIR

from specbench_kit.decoding.distributions import NodeStats
from specbench_kit.predictors.artefact import Predictor
from specbench_kit.predictors.base import Scaler
from specbench_kit.predictors.dense import Dense


def test_a_predictor_of_places_alone() -> None:
    """Its score is 1 / (1 + e^-place): 0.7311, 0.8808 and 0.9526."""
    scorer = Dense(Scaler(np.zeros(1), np.ones(1)), [(np.array([[1.0]]), np.array([0.0]))])
    predictor = Predictor("logistic", scorer, ("draft_position",), 0.5, "by hand", PAIR)
    nothing = NodeStats(0.0, 0.0, 0.0, 0.0, 0.0)
    expected = pytest.approx([0.7311, 0.8808, 0.9526], abs=1e-4)
    assert [predictor.score(nothing, position) for position in (1, 2, 3)] == expected
    assert predictor.score_chain(np.zeros((3, 5), np.float32)) == expected
