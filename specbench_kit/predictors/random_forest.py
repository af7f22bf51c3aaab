"""Random forest of scikit-learn."""

from typing import Any, ClassVar

import numpy as np

from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.trees import MeanTrees, Nodes, Tree, at_most


@families.register("random_forest")
class RandomForest(PredictorFamily):
    """Bagged trees; of those grown, the first few that reach the least validation loss are kept."""

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


def _best_count(shares: "np.ndarray[Any, Any]", labels: "np.ndarray[Any, Any]") -> int:
    """How many trees, from the first on, have the least log-loss; `shares` [n, trees] are those of all trees."""
    from sklearn.metrics import log_loss

    counts = np.arange(1, shares.shape[1] + 1)
    means = np.minimum(shares.cumsum(axis=1) * (len(counts) / counts), 1.0)
    losses = [log_loss(labels, means[:, place], labels=[False, True]) for place in range(len(counts))]
    return int(np.argmin(losses)) + 1


def export(trees: Any) -> MeanTrees:
    """The scorer of fitted scikit-learn classification trees with equal votes."""
    return MeanTrees(Nodes.of(_tree(tree.tree_, 1 / len(trees)) for tree in trees))


def _tree(tree: Any, weight: float) -> Tree:
    # Class shares [nodes, 1, classes]; the second class is "accepted".
    accepted = tree.value[:, 0, 1] * weight
    return Tree(tree.feature, at_most(tree.threshold), tree.children_left, tree.children_right, accepted)
