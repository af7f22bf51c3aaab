"""Random forest of scikit-learn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.trees import MeanTrees, Tree, TreeNodes, at_most

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeClassifier


@families.register("random_forest")
class RandomForest(PredictorFamily):
    """Bagged trees, cut after the number of trees with the least validation loss."""

    summary = "bagged trees on random features"
    source = "Breiman 2001"
    space: ClassVar[Space] = {
        "n_estimators": (60, 30, 100),
        "max_depth": (8, 5, 6, 10),
        "min_samples_leaf": (50, 20, 100, 200),
        "max_features": (0.5, 0.25, 0.75),
        "max_samples": (0.5, 0.25),
    }

    def train(self, train: Examples, valid: Examples, params: Params, seed: int, /) -> Scorer:
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.metrics import log_loss

        forest = RandomForestClassifier(**params, random_state=seed, n_jobs=-1).fit(
            train.features, train.labels
        )
        trees = forest.estimators_
        # Choose the number of first trees with the least log-loss: the leaf values are shares of
        # all trees.
        shares = export(trees).leaf_values(valid.features)
        counts = np.arange(1, len(trees) + 1)
        means = np.minimum(shares.cumsum(axis=1) * (len(counts) / counts), 1.0)
        losses = [log_loss(valid.labels, column, labels=[False, True]) for column in means.T]
        return export(trees[: int(np.argmin(losses)) + 1])

    def scorer_type(self) -> type[Scorer]:
        return MeanTrees


def export(trees: "Sequence[DecisionTreeClassifier]") -> MeanTrees:
    """Return the scorer of fitted scikit-learn classification trees with equal votes."""
    fitted = [tree.tree_ for tree in trees]
    # Class shares are [nodes, 1, classes]; the second class is "accepted".
    return MeanTrees(
        TreeNodes.of(
            Tree(
                tree.feature,
                at_most(tree.threshold),
                tree.children_left,
                tree.children_right,
                tree.value[:, 0, 1] * (1 / len(fitted)),
            )
            for tree in fitted
        )
    )
