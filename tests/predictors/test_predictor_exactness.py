"""Scorers against the libraries that trained them, values on thresholds and one float beside them included."""

import numpy as np
import pytest
from numpy.typing import NDArray
from predictor_examples import synthetic

from specbench_kit.predictors import lightgbm, random_forest, xgboost
from specbench_kit.predictors.base import Scaler
from specbench_kit.predictors.dense import Dense
from specbench_kit.predictors.trees import MeanTrees, at_most, below

TRAIN = synthetic(3000, seed=7)
INFINITY = np.float32(np.inf)


def probes(scorer: MeanTrees) -> NDArray[np.float32]:
    """Random rows, then for every split rows with its feature just below, on and just above the threshold."""
    generator = np.random.default_rng(0)
    rows = [
        generator.normal(1, 2, size=(500, 4)).astype(np.float32),
        TRAIN.features[:500],
        -np.zeros((1, 4), np.float32),
    ]
    inner = scorer.nodes.left >= 0
    for feature, threshold in zip(
        scorer.nodes.feature[inner], scorer.nodes.threshold[inner], strict=True
    ):
        near = TRAIN.features[generator.integers(0, len(TRAIN), 4)].copy()
        above = np.nextafter(threshold, INFINITY)
        near[:, feature] = (
            np.nextafter(threshold, -INFINITY),
            threshold,
            above,
            np.nextafter(above, INFINITY),
        )
        rows.append(near)
    return np.concatenate(rows)


def assert_same(
    scorer: MeanTrees, rows: NDArray[np.float32], expected: NDArray[np.float64]
) -> None:
    np.testing.assert_allclose(scorer.score_many(rows), expected, rtol=0, atol=1e-6)
    some = np.linspace(0, len(rows) - 1, 400).astype(int)
    np.testing.assert_allclose(
        [scorer.score(rows[i].tolist()) for i in some], expected[some], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_xgboost(depth: int) -> None:
    import xgboost as library

    data = library.DMatrix(TRAIN.features, TRAIN.labels)
    params = {"objective": "binary:logistic", "max_depth": depth, "eta": 0.3, "nthread": 1}
    booster = library.train(params, data, 40)
    scorer = xgboost.export(booster)
    rows = probes(scorer)
    assert_same(scorer, rows, booster.predict(library.DMatrix(rows)))


def test_xgboost_with_a_fixed_intercept_and_exact_splits() -> None:
    import xgboost as library

    data = library.DMatrix(TRAIN.features, TRAIN.labels)
    params = {
        "objective": "binary:logistic",
        "tree_method": "exact",
        "base_score": 0.3,
        "nthread": 1,
    }
    booster = library.train(params, data, 20)
    scorer = xgboost.export(booster)
    rows = probes(scorer)
    assert_same(scorer, rows, booster.predict(library.DMatrix(rows)))


@pytest.mark.parametrize("leaves", [2, 8, 31])
def test_lightgbm(leaves: int) -> None:
    import lightgbm as library

    settings = {"verbosity": -1, "num_threads": 1, "use_missing": False}
    data = library.Dataset(TRAIN.features, TRAIN.labels.astype(np.float32), params=settings)
    booster = library.train(settings | {"objective": "binary", "num_leaves": leaves}, data, 40)
    scorer = lightgbm.export(booster)
    rows = probes(scorer)
    assert_same(scorer, rows, booster.predict(rows, num_threads=1))


@pytest.mark.parametrize("depth", [1, 6, None])
def test_random_forest(depth: int | None) -> None:
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(15, max_depth=depth, random_state=0).fit(
        TRAIN.features, TRAIN.labels
    )
    scorer = random_forest.export(forest.estimators_)
    rows = probes(scorer)
    assert_same(scorer, rows, forest.predict_proba(rows)[:, 1])


def test_an_ensemble_of_stumps_that_never_split_gives_the_base_rate() -> None:
    import xgboost as library

    data = library.DMatrix(np.zeros((100, 4), np.float32), TRAIN.labels[:100])
    scorer = xgboost.export(library.train({"objective": "binary:logistic", "nthread": 1}, data, 3))
    assert scorer.score((0.0, 0.0, 0.0, 0.0)) == pytest.approx(TRAIN.labels[:100].mean(), abs=1e-3)


def test_thresholds_round_down_so_that_no_float32_changes_sides() -> None:
    third, tenth = np.float64(1) / 3, np.float64(0.1)
    for threshold in (third, -third, tenth, 0.5, 0.0, -0.0, 1e-45, 3e38):
        near = np.float32(threshold)
        values = np.array(
            [np.nextafter(near, -INFINITY), near, np.nextafter(near, INFINITY)], np.float32
        )
        np.testing.assert_array_equal(
            values <= at_most(threshold), values.astype(np.float64) <= threshold
        )
        np.testing.assert_array_equal(values <= below(near), values < near)


def test_a_dense_network_agrees_with_torch() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid()
    )
    linear = [part for part in network if isinstance(part, nn.Linear)]
    layers = [
        (p.weight.detach().double().numpy(), p.bias.detach().double().numpy()) for p in linear
    ]
    scaler = Scaler.of(TRAIN.features)
    with torch.inference_mode():
        expected = network(torch.from_numpy(scaler(TRAIN.features).astype(np.float32)))[
            :, 0
        ].numpy()
    np.testing.assert_allclose(
        Dense(scaler, layers).score_many(TRAIN.features), expected, rtol=0, atol=1e-6
    )


def test_logistic_regression_agrees_with_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    scaler = Scaler.of(TRAIN.features)
    model = LogisticRegression().fit(scaler(TRAIN.features), TRAIN.labels)
    scorer = Dense(scaler, [(model.coef_, model.intercept_)])
    expected = model.predict_proba(scaler(TRAIN.features))[:, 1]
    np.testing.assert_allclose(scorer.score_many(TRAIN.features), expected, rtol=0, atol=1e-12)


def test_certain_scores_neither_overflow_nor_leave_the_unit_interval() -> None:
    scorer = Dense(Scaler(np.zeros(1), np.ones(1)), [(np.array([[1e6]]), np.zeros(1))])
    assert [scorer.score((x,)) for x in (-1.0, 0.0, 1.0)] == [0.0, 0.5, 1.0]
