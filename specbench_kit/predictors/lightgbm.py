"""Gradient-boosted trees of LightGBM."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from specbench_kit.core.typed_json import convert
from specbench_kit.predictors.base import Examples, Params, PredictorFamily, Scorer, Space, families
from specbench_kit.predictors.trees import BoostedTrees, Tree, TreeNodes, at_most

if TYPE_CHECKING:
    from lightgbm import Booster

PATIENCE = 15
"""Number of trees without a better validation loss after which boosting ends."""


@families.register("lightgbm")
class LightGbm(PredictorFamily):
    """Boosted trees with a limited number of leaves, added until the validation loss stops
    falling.
    """

    summary = "gradient-boosted trees, grown leaf by leaf"
    source = "Ke et al. 2017"
    package = "lightgbm"
    space: ClassVar[Space] = {
        "num_leaves": (15, 7, 31),
        "max_depth": (6, 3, 4, 8),
        "learning_rate": (0.1, 0.03, 0.05, 0.2, 0.3),
        "n_estimators": (100, 50, 150),
        "min_child_samples": (50, 20, 200),
        "subsample": (0.8, 0.6, 1.0),
        "colsample_bytree": (1.0, 0.5, 0.75),
        "reg_alpha": (0.0, 0.1, 1.0),
        "reg_lambda": (1.0, 0.1, 10.0),
    }

    def train(self, train: Examples, valid: Examples, params: Params, seed: int, /) -> Scorer:
        import lightgbm

        fixed = {"objective": "binary", "deterministic": True, "force_row_wise": True, "seed": seed}
        # With one thread sums are added in one order, so that a seed gives the same result on every
        # machine.
        fixed |= {"num_threads": 1, "use_missing": False, "subsample_freq": 1, "verbosity": -1}
        data = lightgbm.Dataset(train.features, train.labels.astype(np.float32), params=fixed)
        booster = lightgbm.train(
            {name: value for name, value in params.items() if name != "n_estimators"} | fixed,
            data,
            params["n_estimators"],
            valid_sets=[data.create_valid(valid.features, valid.labels.astype(np.float32))],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
        return export(booster)

    def scorer_type(self) -> type[Scorer]:
        return BoostedTrees


def export(booster: "Booster") -> BoostedTrees:
    """Return the scorer of a lightgbm.Booster with a binary objective, cut after its best tree."""
    dump = convert(ModelDump, booster.dump_model(num_iteration=booster.best_iteration))
    return BoostedTrees(TreeNodes.of(_tree(tree.tree_structure) for tree in dump.tree_info))


class TreeNode(Struct):
    """A node of a tree in LightGBM's dump of a model; a leaf has a value alone."""

    split_feature: int = 0
    threshold: float = 0.0
    leaf_value: float = 0.0
    left_child: "TreeNode | None" = None
    right_child: "TreeNode | None" = None


class DumpedTree(Struct):
    """A tree in LightGBM's dump of a model."""

    tree_structure: TreeNode


class ModelDump(Struct):
    """LightGBM's dump of a model, as far as a scorer needs it."""

    tree_info: list[DumpedTree]


def _tree(root: TreeNode) -> Tree:
    # Breadth-first: the list grows while it is walked, so that both children of a node stand side
    # by side.
    nodes = [root]
    left = []
    for node in nodes:
        children = [child for child in (node.left_child, node.right_child) if child is not None]
        left.append(len(nodes) if children else -1)
        nodes += children
    features = np.array([node.split_feature for node in nodes])
    thresholds = at_most([node.threshold for node in nodes])
    values = np.array([node.leaf_value for node in nodes])
    return Tree(features, thresholds, np.array(left), np.array(left) + 1, values)
