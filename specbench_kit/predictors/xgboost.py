"""Gradient-boosted trees of XGBoost."""

import json
import math
from typing import Any, ClassVar

import numpy as np

from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.trees import BoostedTrees, Tree, TreeNodes, below

PATIENCE = 15
"""Number of trees without a better validation loss after which boosting ends."""


@families.register("xgboost")
class XgBoost(PredictorFamily):
    """Boosted trees of limited depth, added until the validation loss stops falling."""

    summary = "gradient-boosted trees, grown level by level"
    source = "Chen and Guestrin 2016"
    space: ClassVar[Space] = {
        "max_depth": (4, 2, 3, 5, 6),
        "learning_rate": (0.1, 0.03, 0.05, 0.2, 0.3),
        "n_estimators": (100, 50, 150),
        "min_child_weight": (5, 1, 20),
        "gamma": (0.0, 0.1, 1.0, 5.0),
        "subsample": (0.8, 0.6, 1.0),
        "colsample_bytree": (1.0, 0.5, 0.75),
        "reg_alpha": (0.0, 0.1, 1.0),
        "reg_lambda": (1.0, 0.1, 10.0),
    }

    def train(self, train: Examples, valid: Examples, params: Params, seed: int, /) -> Scorer:
        return export(_boost(train, valid, dict(params), seed))

    def scorer_type(self) -> type[Scorer]:
        return BoostedTrees


def _boost(train: Examples, valid: Examples, params: dict[str, Any], seed: int) -> Any:
    """Return a trained xgboost.Booster, cut after its best tree."""
    import xgboost

    rounds = params.pop("n_estimators")
    # With one thread sums are added in one order, so that a seed gives the same result on every machine.
    settings = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1, "seed": seed, "verbosity": 0}
    data = [xgboost.DMatrix(examples.features, examples.labels) for examples in (train, valid)]
    booster = xgboost.train(
        params | settings,
        data[0],
        rounds,
        evals=[(data[1], "valid")],
        early_stopping_rounds=PATIENCE,
        verbose_eval=False,
    )
    return booster[: booster.best_iteration + 1]


def export(booster: Any) -> BoostedTrees:
    """Return the scorer of an xgboost.Booster with a logistic objective."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    trees = [_tree(fields) for fields in learner["gradient_booster"]["model"]["trees"]]
    intercept = float(learner["learner_model_param"]["base_score"].strip("[]"))
    trees[0].value[trees[0].left < 0] += math.log(intercept / (1 - intercept))
    return BoostedTrees(TreeNodes.of(trees))


def _tree(fields: dict[str, Any]) -> Tree:
    left, right = np.array(fields["left_children"]), np.array(fields["right_children"])
    # XGBoost stores a leaf's value in the field that holds the threshold of other nodes.
    conditions = np.array(fields["split_conditions"], np.float32)
    return Tree(np.array(fields["split_indices"]), below(conditions), left, right, conditions.astype(np.float64))
