"""Random forest of scikit-learn."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.trees import MeanTrees, Tree, TreeNodes, at_most


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

        forest = RandomForestClassifier(**params, random_state=seed, n_jobs=-1).fit(train.features, train.labels)
        trees = forest.estimators_
        return export(trees[: _best_count(export(trees).leaf_values(valid.features), valid.labels)])

    def scorer_type(self) -> type[Scorer]:
        return MeanTrees


def _best_count(shares: NDArray[np.float64], labels: NDArray[np.bool_]) -> int:
    """Return the number of first trees with the least log-loss; `shares` [n, trees] are the trees' leaf values."""
    from sklearn.metrics import log_loss

    counts = np.arange(1, shares.shape[1] + 1)
    means = np.minimum(shares.cumsum(axis=1) * (len(counts) / counts), 1.0)
    losses = [log_loss(labels, column, labels=[False, True]) for column in means.T]
    return int(np.argmin(losses)) + 1


def export(trees: Any) -> MeanTrees:
    """Return the scorer of fitted scikit-learn classification trees with equal votes."""
    return MeanTrees(TreeNodes.of(_tree(tree.tree_, 1 / len(trees)) for tree in trees))


def _tree(tree: Any, weight: float) -> Tree:
    # Class shares [nodes, 1, classes]; the second class is "accepted".
    accepted = tree.value[:, 0, 1] * weight
    return Tree(tree.feature, at_most(tree.threshold), tree.children_left, tree.children_right, accepted)
