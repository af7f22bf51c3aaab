import math
import subprocess
import sys

import numpy as np
import pytest
from command_line import PATIENCE_S
from predictor_examples import synthetic

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import PredictorFamily, families
from specbench_kit.predictors.search import log_loss

NAMES = ("lightgbm", "logistic", "mlp", "random_forest", "xgboost")
TRAIN, VALID = synthetic(1500, seed=1), synthetic(500, seed=2)


def family(name: str) -> PredictorFamily:
    return families.get(name)()


def test_the_five_families_are_found_by_name() -> None:
    assert set(NAMES) <= set(families.all())
    with pytest.raises(
        SkitError, match=r"unknown predictor family 'xgbost' \(did you mean 'xgboost'\?\)"
    ):
        families.get("xgbost")


def test_finding_families_imports_no_training_library() -> None:
    code = (
        "import sys; from specbench_kit.predictors.base import families; families.all();"
        "print({'torch', 'sklearn', 'xgboost', 'lightgbm', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_beats_the_base_rate_and_scores_one_token_as_it_scores_many(name: str) -> None:
    scorer = family(name).fit(TRAIN, VALID, {}, seed=3)
    many = scorer.score_many(VALID.features)
    rate = TRAIN.labels.mean()
    base = -(VALID.labels * math.log(rate) + ~VALID.labels * math.log(1 - rate)).mean()
    assert log_loss(VALID, scorer) < 0.9 * base
    assert ((many >= 0) & (many <= 1)).all()
    entry = [scorer.score(tuple(map(float, row))) for row in VALID.features]
    np.testing.assert_allclose(entry, many, rtol=0, atol=1e-12)
    assert all(type(score) is float for score in entry)


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_scorer_and_its_tensors_give_it_back(name: str) -> None:
    first, second = (family(name).fit(TRAIN, VALID, {}, seed=3).to_tensors() for _ in range(2))
    assert first.keys() == second.keys()
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])
    restored = family(name).scorer_type().from_tensors(first, 4)
    expected = family(name).fit(TRAIN, VALID, {}, seed=3).score_many(VALID.features)
    np.testing.assert_array_equal(restored.score_many(VALID.features), expected)


@pytest.mark.parametrize("name", ["lightgbm", "mlp", "random_forest", "xgboost"])
def test_another_seed_gives_another_scorer(name: str) -> None:
    first, second = (
        family(name).fit(TRAIN, VALID, {}, seed).score_many(VALID.features) for seed in (3, 4)
    )
    assert (first != second).any()


@pytest.mark.parametrize("name", NAMES)
def test_every_corner_of_the_search_space_can_be_fitted(name: str) -> None:
    for index in (1, -1):
        params = {key: values[index] for key, values in family(name).space.items()}
        scores = family(name).fit(TRAIN, VALID, params, seed=0).score_many(VALID.features)
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_feature_or_five_will_do(name: str) -> None:
    for names in (
        ("confidence",),
        ("confidence", "entropy", "margin", "logit_std", "draft_position"),
    ):
        scorer = family(name).fit(TRAIN.select(names), VALID.select(names), {}, seed=0)
        assert np.isfinite(scorer.score_many(VALID.select(names).features)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_that_is_not_a_number_gives_a_score_that_no_threshold_accepts(name: str) -> None:
    scorer = family(name).fit(TRAIN, VALID, {}, seed=0)
    assert math.isnan(scorer.score((0.5, math.nan, 0.1, 2.0)))
    rows = np.array([[0.5, np.nan, 0.1, 2.0], [0.5, 1.0, 0.1, 2.0]], np.float32)
    np.testing.assert_array_equal(np.isnan(scorer.score_many(rows)), [True, False])


def test_fitting_leaves_torch_randomness_as_it_was() -> None:
    import torch

    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    family("mlp").fit(TRAIN, VALID, {}, seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_the_forest_keeps_the_trees_up_to_the_least_validation_loss() -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import log_loss as reference_loss

    params = {**family("random_forest").defaults, "n_estimators": 12}
    kept_trees = family("random_forest").fit(TRAIN, VALID, params, seed=5)
    forest = RandomForestClassifier(**params, random_state=5).fit(TRAIN.features, TRAIN.labels)
    shares = np.stack([tree.predict_proba(VALID.features)[:, 1] for tree in forest.estimators_])
    losses = [reference_loss(VALID.labels, shares[:count].mean(axis=0)) for count in range(1, 13)]
    assert log_loss(VALID, kept_trees) == pytest.approx(min(losses), abs=1e-9)


def test_the_network_keeps_the_weights_of_its_best_epoch() -> None:
    # A learning rate this high soon overshoots; going back to the best epoch keeps the result useful.
    scorer = family("mlp").fit(TRAIN, VALID, {"learning_rate": 0.3, "batch_size": 64}, seed=0)
    assert log_loss(VALID, scorer) < math.log(2)


def test_unknown_hyper_parameters_and_unfit_examples_are_refused() -> None:
    with pytest.raises(
        SkitError, match="unknown hyper-parameter 'depth'; known: max_depth, learning_rate"
    ):
        family("xgboost").fit(TRAIN, VALID, {"depth": 3}, seed=0)
    accepted = TRAIN.take(TRAIN.labels)
    with pytest.raises(
        SkitError, match=rf"training examples hold {len(accepted)} accepted and 0 rejected tokens"
    ):
        family("logistic").fit(accepted, VALID, {}, seed=0)
    with pytest.raises(
        SkitError, match="validation examples hold 0 accepted and 0 rejected tokens"
    ):
        family("logistic").fit(TRAIN, VALID.take(np.arange(0)), {}, seed=0)
    with pytest.raises(SkitError, match="different features"):
        family("logistic").fit(TRAIN, VALID.select(("margin",)), {}, seed=0)


def test_a_normalised_network_scores_as_it_was_trained_and_as_torch_scores_it() -> None:
    """The normalisation is folded into the layers; a last batch of one example is passed over."""
    import torch

    from specbench_kit.predictors.mlp import Mlp, _layers, _network

    few = TRAIN.take(np.arange(129))
    params = {"batch_norm": True, "hidden": "16-8", "batch_size": 128, "learning_rate": 1e-2}
    assert log_loss(VALID, Mlp().fit(few, VALID, params, seed=0)) < math.log(2)
    network = _network(4, {**Mlp().defaults, **params})
    network.train()(torch.randn(64, 4) * 3 + 1)  # moves the running statistics
    rows = torch.randn(20, 4)
    expected = network.eval()(rows).detach().double().numpy()
    search_result = rows.double().numpy()
    *hidden, last = _layers(network)
    for weight, bias in hidden:
        search_result = np.maximum(search_result @ weight.T + bias, 0.0)
    np.testing.assert_allclose((search_result @ last[0].T + last[1])[:, 0], expected, atol=1e-5)


def test_the_search_space_holds_what_wisps_table_9_names() -> None:
    assert "512-128-64" in families.get("mlp").space["hidden"]
    assert set(families.get("mlp").space["batch_norm"]) == {False, True}
    assert {"min_child_weight", "gamma", "reg_lambda", "reg_alpha"} <= set(
        families.get("xgboost").space
    )
