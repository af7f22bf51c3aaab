"""Scorers of tree ensembles, which descend all trees together, one level per step."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench_kit.predictors.base import Scorer, Tensors
from specbench_kit.predictors.dense import logistic, logistic_of

CHUNK = 2048
"""Number of rows that are scored at a time, which keeps the work in the cache."""
TYPES: dict[str, type[np.generic]] = {
    "feature": np.int16,
    "threshold": np.float32,
    "left": np.int32,
    "value": np.float64,
    "root": np.int32,
}


class Tree(NamedTuple):
    """The nodes of one tree, the root first; a float32 feature goes left if it is at most the
    threshold.

    `left` and `right` are indices of nodes, negative at a leaf; only leaves have a `value`.
    """

    feature: NDArray[np.integer]
    threshold: NDArray[np.float32]
    left: NDArray[np.integer]
    right: NDArray[np.integer]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TreeNodes:
    """The nodes of all trees in one array, each tree from its root on; a right child follows its
    left sibling.

    `feature` int16, `threshold` float32, `left` int32 (-1: leaf), `value` float64 (0 elsewhere); `root` holds the
    index of each tree's root, [trees].
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    value: NDArray[np.float64]
    root: NDArray[np.int32]

    @classmethod
    def of(cls, trees: Iterable[Tree]) -> Self:
        """Return the nodes of a library's trees, renumbered."""
        renumbered = [_breadth_first(tree) for tree in trees]
        root = np.cumsum([0, *(len(tree.left) for tree in renumbered[:-1])])
        shifted = [
            np.where(t.left < 0, -1, t.left + first)
            for t, first in zip(renumbered, root, strict=True)
        ]
        columns = {
            "feature": np.concatenate([tree.feature for tree in renumbered]),
            "threshold": np.concatenate([tree.threshold for tree in renumbered]),
            "left": np.concatenate(shifted),
            "value": np.concatenate([tree.value for tree in renumbered]),
            "root": root,
        }
        return cls(**{name: column.astype(TYPES[name]) for name, column in columns.items()})


class MeanTrees(Scorer):
    """Trees whose leaf values add up to the probability: a forest, with each share divided by the
    number of trees.
    """

    def __init__(self, nodes: TreeNodes) -> None:
        self.nodes = nodes
        leaf = nodes.left < 0
        self._feature = nodes.feature.astype(np.intp)
        # A leaf is its own left child and nothing is greater than its threshold, so a walk that
        # reaches it stays.
        self._left = np.where(leaf, np.arange(len(leaf)), nodes.left)
        self._threshold = np.where(leaf, np.float32(np.inf), nodes.threshold)
        self._root = nodes.root.astype(np.intp)
        self._depth = _depth(nodes)

    def score(self, features: Sequence[float]) -> float:
        if math.isnan(sum(features)):
            return math.nan
        row = np.array(features, np.float32)
        node = self._root
        for _ in range(self._depth):
            goes_right = row.take(self._feature.take(node)) > self._threshold.take(node)
            node = self._left.take(node) + goes_right
        return self._probability(float(self.nodes.value.take(node).sum()))

    def score_many(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        scores = self._probabilities(self.leaf_values(features).sum(axis=1))
        return np.where(np.isnan(features).any(axis=1), np.nan, scores)

    def leaf_values(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the leaf value of each row in each tree, [n, trees]."""
        values = np.empty((len(features), len(self._root)))
        for first in range(0, len(features), CHUNK):
            rows = np.ascontiguousarray(features[first : first + CHUNK], np.float32)
            values[first : first + CHUNK] = self.nodes.value.take(self._leaves(rows))
        return values

    def _leaves(self, rows: NDArray[np.float32]) -> NDArray[np.intp]:
        start = np.arange(len(rows))[:, None] * rows.shape[1]
        node = np.broadcast_to(self._root, (len(rows), len(self._root)))
        for _ in range(self._depth):
            goes_right = rows.take(start + self._feature.take(node)) > self._threshold.take(node)
            node = self._left.take(node) + goes_right
        return node

    def to_tensors(self) -> Tensors:
        return {name: getattr(self.nodes, name) for name in TYPES}

    @classmethod
    def from_tensors(cls, tensors: Tensors, features: int) -> Self:
        if {name: tensor.dtype for name, tensor in tensors.items()} != {
            n: np.dtype(t) for n, t in TYPES.items()
        }:
            raise ValueError(f"unexpected tensors {', '.join(sorted(tensors)) or '(none)'}")
        nodes = TreeNodes(**tensors)
        _check(nodes, features)
        return cls(nodes)

    def _probability(self, total: float) -> float:
        return min(total, 1.0)  # shares of many trees may add up to slightly more than 1

    def _probabilities(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.minimum(totals, 1.0)


class BoostedTrees(MeanTrees):
    """Trees whose leaf values add up to the log-odds: gradient boosting."""

    def _probability(self, total: float) -> float:
        return logistic(total)

    def _probabilities(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        return logistic_of(totals)


def at_most(thresholds: ArrayLike) -> NDArray[np.float32]:
    """Return float32 thresholds t' with x <= t' exactly where x <= t, for every float32 x."""
    exact = np.asarray(thresholds, np.float64)
    rounded = exact.astype(np.float32)
    return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def below(thresholds: ArrayLike) -> NDArray[np.float32]:
    """Return float32 thresholds t' with x <= t' exactly where x < t, for every float32 x; t is
    float32 itself.
    """
    return np.nextafter(np.asarray(thresholds, np.float32), np.float32(-np.inf))


def _breadth_first(tree: Tree) -> Tree:
    """Return the tree with its nodes numbered by level, so that a right child follows its left
    sibling.
    """
    order = [0]
    for node in order:
        if tree.left[node] >= 0:
            order += (int(tree.left[node]), int(tree.right[node]))
    renumbered = np.empty(len(tree.left), np.intp)
    renumbered[order] = np.arange(len(order))
    leaf = tree.left[order] < 0
    left, right = (
        np.where(leaf, -1, renumbered[child[order]]) for child in (tree.left, tree.right)
    )
    feature = np.where(leaf, 0, tree.feature[order])
    threshold = np.where(leaf, 0, tree.threshold[order])
    return Tree(feature, threshold, left, right, np.where(leaf, tree.value[order], 0))


def _depth(nodes: TreeNodes) -> int:
    """Return the number of steps from a root to the deepest leaf."""
    depth = 0
    level = nodes.root
    while (left := nodes.left[level][nodes.left[level] >= 0]).size:
        depth = depth + 1
        level = np.concatenate([left, left + 1])
    return depth


def _check(nodes: TreeNodes, features: int) -> None:
    count = len(nodes.left)
    if (
        any(getattr(nodes, name).shape != (count,) for name in TYPES if name != "root")
        or nodes.root.ndim != 1
    ):
        raise ValueError("the node arrays differ in length")
    if not np.isfinite(nodes.threshold).all() or not np.isfinite(nodes.value).all():
        raise ValueError("a threshold or leaf value is not finite")
    if not nodes.root.size or nodes.feature.min() < 0 or nodes.feature.max() >= features:
        raise ValueError("the trees do not fit the features")
    inner = np.flatnonzero(nodes.left >= 0)
    left = nodes.left[inner]
    # Children come after their parents and have one parent each: these are trees, and every walk
    # ends.
    reached = np.sort(np.concatenate([nodes.root, left, left + 1]))
    if not (left > inner).all() or not np.array_equal(reached, np.arange(count)):
        raise ValueError("the nodes do not form trees")
