"""Gradient-boosted trees of XGBoost."""

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from specbench_kit.core.typed_json import decode
from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.trees import BoostedTrees, Tree, TreeNodes, below

if TYPE_CHECKING:
    from xgboost import Booster

PATIENCE = 15
"""Number of trees without a better validation loss after which boosting ends."""


@families.register("xgboost")
class XgBoost(PredictorFamily):
    """Boosted trees of limited depth, added until the validation loss stops falling."""

    summary = "gradient-boosted trees, grown level by level"
    source = "Chen and Guestrin 2016"
    package = "xgboost"
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
        import xgboost

        fixed = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "seed": seed,
            "verbosity": 0,
        }
        # With one thread sums are added in one order, so that a seed gives the same result on every
        # machine.
        fixed["nthread"] = 1
        data = [xgboost.DMatrix(examples.features, examples.labels) for examples in (train, valid)]
        booster = xgboost.train(
            {name: value for name, value in params.items() if name != "n_estimators"} | fixed,
            data[0],
            params["n_estimators"],
            evals=[(data[1], "valid")],
            early_stopping_rounds=PATIENCE,
            verbose_eval=False,
        )
        return export(booster[: booster.best_iteration + 1])

    def scorer_type(self) -> type[Scorer]:
        return BoostedTrees


class _Tree(Struct):
    left_children: list[int]
    right_children: list[int]
    split_indices: list[int]
    split_conditions: list[float]


class _Model(Struct):
    trees: list[_Tree]


class _GradientBooster(Struct):
    model: _Model


class _ModelParameters(Struct):
    base_score: str


class _Learner(Struct):
    gradient_booster: _GradientBooster
    learner_model_param: _ModelParameters


class _SavedBooster(Struct):
    """The parts of XGBoost's JSON format that a scorer needs."""

    learner: _Learner


def export(booster: "Booster") -> BoostedTrees:
    """Return the scorer of an xgboost.Booster with a logistic objective."""
    learner = decode(_SavedBooster, bytes(booster.save_raw("json"))).learner
    trees = []
    for tree in learner.gradient_booster.model.trees:
        # XGBoost stores a leaf's value in the field that holds the threshold of other nodes.
        conditions = np.array(tree.split_conditions, np.float32)
        left = np.array(tree.left_children)
        right = np.array(tree.right_children)
        values = conditions.astype(np.float64)
        trees.append(Tree(np.array(tree.split_indices), below(conditions), left, right, values))
    # The first tree carries the intercept, which XGBoost stores as a probability.
    intercept = float(learner.learner_model_param.base_score.strip("[]"))
    trees[0].value[trees[0].left < 0] += math.log(intercept / (1 - intercept))
    return BoostedTrees(TreeNodes.of(trees))
