"""The tree of one shape that is expected to have the most tokens accepted, where the b-th child is with a known chance.

Sequoia, arXiv 2402.12374: dynamic programming over size, levels and children of the root.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Nodes, the root included, that are tried where none is asked for."""
BRANCHES = 16
"""Children that a node can have."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A node and its children, likeliest first."""

    children: "tuple[TreeShape, ...]" = ()

    @property
    def size(self) -> int:
        """Nodes, this one included."""
        return 1 + sum(child.size for child in self.children)

    @property
    def levels(self) -> int:
        """Of nodes, this one included."""
        return 1 + max((child.levels for child in self.children), default=0)

    def expected(self, chances: Sequence[float]) -> float:
        """Tokens of a round: the target's own, and each node's chance."""
        pairs = zip(chances, self.children, strict=False)
        return 1 + sum(chance * child.expected(chances) for chance, child in pairs)


class TreeShapes:
    """The best tree of every size and number of levels."""

    def __init__(self, chances: tuple[float, ...], size: int, levels: int) -> None:
        self._chances = chances[:BRANCHES]
        self._best: list[NDArray[Any]] = []
        """By levels, then [children of the root, nodes]: expected tokens of a round, -inf where there is no tree."""
        self._last: list[NDArray[Any]] = []
        """The same: how many of the nodes stand below the root's last child, it included."""
        for _ in range(levels + 1):
            best, last = self._level(size)
            self._best.append(best)
            self._last.append(last)

    def expected(self, size: int, levels: int) -> float:
        """Tokens of a round with the best tree of exactly that size on at most so many levels; -inf without one."""
        return float(self._best[levels][:, size].max())

    def shape(self, size: int, levels: int) -> TreeShape:
        """The best tree of exactly that size on at most so many levels."""
        branches = int(self._best[levels][:, size].argmax())
        children: list[TreeShape] = []
        for branch in range(branches, 0, -1):
            own = int(self._last[levels][branch, size])
            children.append(self.shape(own, levels - 1))
            size -= own
        return TreeShape(tuple(children[::-1]))

    def _level(self, size: int) -> "tuple[NDArray[Any], NDArray[Any]]":
        """One more level than what there is so far; without a level there is no tree."""
        import numpy as np

        shape = len(self._chances) + 1, size + 1
        best, last = np.full(shape, -np.inf), np.zeros(shape, int)
        if not self._best:
            return best, last
        best[0, 1], below = 1.0, self._best[-1].max(0)
        for branch, chance in enumerate(self._chances, 1):
            for nodes in range(2, size + 1):
                own = np.arange(1, nodes)
                sums = best[branch - 1, nodes - own] + chance * below[own]
                place = int(sums.argmax())
                best[branch, nodes], last[branch, nodes] = sums[place], own[place]
        return best, last


@lru_cache(maxsize=8)
def shapes(chances: tuple[float, ...], size: int, levels: int) -> TreeShapes:
    """Computed once for a table of chances."""
    return TreeShapes(chances, size, levels)


def fastest(
    chances: tuple[float, ...],
    sizes: Sequence[int],
    levels: int,
    draft_s: float,
    verify_s: Callable[[int], float],
) -> TreeShape:
    """The tree with the least seconds per token: a draft step per level, and a verification of its size."""
    found = shapes(chances, max(sizes), levels)
    rated = [
        ((level * draft_s + verify_s(size)) / expected, size, level)
        for size in sizes
        for level in range(1, levels + 1)
        if (expected := found.expected(size, level)) > 0
    ]
    if not rated:
        shape = f"{sizes[0]} nodes on {levels} levels with {len(chances)} children at most"
        raise SkitError(f"there is no tree of {shape}: allow more levels, or fewer nodes")
    _, size, level = min(rated)
    return found.shape(size, level)
