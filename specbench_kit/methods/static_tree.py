"""The tree shape with the most expected accepted tokens, if a node's b-th child is accepted with a known probability.

It is found by dynamic programming over size, levels and children of the root (Sequoia, arXiv 2402.12374).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of nodes, the root included, that `size=auto` tries."""
BRANCHES = 16
"""The largest number of children of a node."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A node of a tree shape and its children, most probable first."""

    children: "tuple[TreeShape, ...]" = ()

    @property
    def size(self) -> int:
        """Return the number of nodes, this one included."""
        return 1 + sum(child.size for child in self.children)

    @property
    def levels(self) -> int:
        """Return the number of levels, that of this node included."""
        return 1 + max((child.levels for child in self.children), default=0)

    def expected(self, chances: Sequence[float]) -> float:
        """Return the expected tokens of a round: the bonus token and each node with its probability."""
        pairs = zip(chances, self.children, strict=False)
        return 1 + sum(chance * child.expected(chances) for chance, child in pairs)


class TreeShapes:
    """The best tree shape of every size and number of levels, by the acceptance probability of each child rank."""

    def __init__(self, chances: tuple[float, ...], size: int, levels: int) -> None:
        self._chances = chances[:BRANCHES]
        self._best: list[NDArray[np.float64]] = []
        """Expected tokens of a round, by levels, then [children of the root, nodes]; -inf where no tree exists."""
        self._last: list[NDArray[np.float64]] = []
        """Nodes of the subtree of the root's last child, in the same order as `_best`."""
        for _ in range(levels + 1):
            best, last = self._level(size)
            self._best.append(best)
            self._last.append(last)

    def expected(self, size: int, levels: int) -> float:
        """Return the expected tokens of the best tree with `size` nodes on at most `levels` levels, or -inf."""
        return float(self._best[levels][:, size].max())

    def shape(self, size: int, levels: int) -> TreeShape:
        """Return the best tree with exactly `size` nodes on at most `levels` levels."""
        branches = int(self._best[levels][:, size].argmax())
        children: list[TreeShape] = []
        for branch in range(branches, 0, -1):
            child_size = int(self._last[levels][branch, size])
            children.append(self.shape(child_size, levels - 1))
            size -= child_size
        return TreeShape(tuple(children[::-1]))

    def _level(self, size: int) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
        """Return the tables for one more level than before; with no level at all, no tree exists."""
        import numpy as np

        shape = len(self._chances) + 1, size + 1
        best, last = np.full(shape, -np.inf), np.zeros(shape, int)
        if not self._best:
            return best, last
        best[0, 1], below = 1.0, self._best[-1].max(0)
        exists = below > -np.inf
        for branch, chance in enumerate(self._chances, 1):
            # A chance of 0 times no tree, which is minus infinity, is no tree either.
            child = np.where(exists, chance * np.where(exists, below, 0.0), -np.inf)
            for nodes in range(2, size + 1):
                # Split the nodes between the last child's subtree and the tree without that child.
                child_sizes = np.arange(1, nodes)
                sums = best[branch - 1, nodes - child_sizes] + child[child_sizes]
                index = int(sums.argmax())
                best[branch, nodes], last[branch, nodes] = sums[index], child_sizes[index]
        return best, last


@lru_cache(maxsize=8)
def shapes(chances: tuple[float, ...], size: int, levels: int) -> TreeShapes:
    """Return the tree shapes for a table of acceptance probabilities; they are computed once per table."""
    return TreeShapes(chances, size, levels)


def fastest(
    chances: tuple[float, ...],
    sizes: Sequence[int],
    levels: int,
    draft_s: float,
    verify_s: Callable[[int], float],
) -> TreeShape:
    """Return the tree with the fewest seconds per expected token.

    A round takes `draft_s` seconds per level and `verify_s(nodes)` seconds for the verification. Raise SkitError if no
    tree of these sizes fits `levels`.
    """
    table = shapes(chances, max(sizes), levels)
    rated = [
        ((level * draft_s + verify_s(size)) / expected, size, level)
        for size in sizes
        for level in range(1, levels + 1)
        if (expected := table.expected(size, level)) > 0
    ]
    if not rated:
        shape = f"{sizes[0]} nodes on {levels} levels with {len(chances)} children at most"
        raise SkitError(f"there is no tree of {shape}: allow more levels, or fewer nodes")
    _, size, level = min(rated)
    return table.shape(size, level)
