"""A tree of fixed shape, the fastest one by the pair's rank-wise acceptance.

Also here: the tree shape with the most expected accepted tokens, if a node's b-th child is accepted
with a known probability.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import (
    LATENCIES,
    Capability,
    Environment,
    Latencies,
    Method,
    MethodInputs,
    Policy,
    methods,
    require,
)
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import answer_s, draft_s
from specbench_kit.models.executors.tree_rule import ShapeRule
from specbench_kit.predictors.ranks import RankTable, find, load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.drafter import Draft, Drafter

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

    @property
    def parents(self) -> tuple[int, ...]:
        """Return the nodes above those below this one, level by level; this one is node 0."""
        parents: list[int] = []
        level = [(0, self)]
        while level:
            below = [(node, child) for node, shape in level for child in shape.children]
            first = len(parents) + 1
            parents += [node for node, _ in below]
            level = [(first + index, child) for index, (_, child) in enumerate(below)]
        return tuple(parents)

    def expected(self, chances: Sequence[float]) -> float:
        """Return the expected tokens of a round: the bonus token and each node with its
        probability.
        """
        pairs = zip(chances, self.children, strict=False)
        return 1 + sum(chance * child.expected(chances) for chance, child in pairs)


class TreeShapes:
    """The best tree shape of every size and number of levels, by the acceptance probability of each
    child rank.
    """

    def __init__(self, chances: tuple[float, ...], size: int, levels: int) -> None:
        self._chances = chances[:BRANCHES]
        self._best: list[NDArray[np.float64]] = []
        """Expected tokens of a round, by levels, then [children of the root, nodes]; -inf where no
        tree exists.
        """
        self._last: list[NDArray[np.float64]] = []
        """Nodes of the subtree of the root's last child, in the same order as `_best`."""
        for _ in range(levels + 1):
            best, last = self._level(size)
            self._best.append(best)
            self._last.append(last)

    def expected(self, size: int, levels: int) -> float:
        """Return the expected tokens of the best tree with `size` nodes on at most `levels` levels,
        or -inf.
        """
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
        """Return the tables for one more level than before; with no level at all, no tree
        exists.
        """
        import numpy as np

        shape = len(self._chances) + 1, size + 1
        best = np.full(shape, -np.inf)
        last = np.zeros(shape, int)
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
    """Return the tree shapes for a table of acceptance probabilities; they are computed once per
    table.
    """
    return TreeShapes(chances, size, levels)


def fastest(
    chances: tuple[float, ...],
    sizes: Sequence[int],
    levels: int,
    draft_s: float,
    verify_s: Callable[[int], float],
) -> TreeShape:
    """Return the tree with the fewest seconds per expected token.

    A round takes `draft_s` seconds per level and `verify_s(nodes)` seconds for the verification.
    Raise SkitError if no tree of these sizes fits `levels`.
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


@methods.register("sequoia")
@dataclass(frozen=True)
class Sequoia(LatencyAware):
    """Draft the tree that takes the least time per expected token, of the same shape in every round
    of the run.

    The b-th child of a node is accepted as often as the target's token was the draft model's b-th most probable.
    `ranks` is the table of these shares: `measured` for the one that `skit measure-ranks` made for the pair and the
    run's temperature, or a file. `size` is the number of nodes, the root included (1..512, or `auto` for the fastest),
    on at most `max_depth` levels. The shape is chosen for the batch of the first round and kept for the run. Children
    are the most probable tokens, also under sampling, where the paper draws them without replacement: `sampled-tree`
    does so.
    """

    size: int | Literal["auto"] = "auto"
    max_depth: int = 10
    ranks: str = "measured"
    table: RankTable | None = field(default=None, init=False, repr=False, kw_only=True)
    source = "Sequoia, arXiv 2402.12374"
    reported_result = "up to 4.04 times autoregressive decoding (Llama2-7B on an A100)"
    group = "tree"
    needs = f"rank-wise acceptance: skit measure-ranks; {LATENCIES}"
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        require(
            self.size == "auto" or 1 <= self.size <= 512,
            f"sequoia: size must be auto or 1..512, not {self.size}",
        )
        self.require_at_least(1, "max_depth")

    @property
    def deepest_draft(self) -> int:
        return self.max_depth

    def prepare(self, environment: Environment) -> Method:
        if self.ranks != "measured":
            table = load(Path(self.ranks).expanduser())
        elif (measured := find(environment.pair, environment.temperature)) is not None:
            table = measured
        else:
            raise SkitError(
                f"sequoia: rank-wise acceptance of this pair at temperature {environment.temperature:g} was not "
                "measured: run skit measure-ranks with the same --target, --draft and --temperature"
            )
        prepared = copy(super().prepare(environment))
        object.__setattr__(prepared, "table", table)
        return prepared

    def uses(self) -> MethodInputs:
        ranks = (
            {}
            if self.table is None
            else {"ranks": {"shares": self.table.shares, "count": self.table.count}}
        )
        return {**super().uses(), **ranks}

    def policy_with(self, latencies: Latencies) -> Policy:
        assert self.table is not None
        sizes = SIZES if self.size == "auto" else (int(self.size),)
        return _SequoiaPolicy(self.table.shares, sizes, self.max_depth, latencies)


@dataclass
class _SequoiaPolicy(Policy):
    chances: tuple[float, ...]
    sizes: tuple[int, ...]
    levels: int
    latencies: Latencies
    shape: TreeShape | None = None
    rule: ShapeRule | None = None

    def draft(self, drafter: "Drafter") -> None:
        if self.shape is None:
            self.shape = self._choose_shape(drafter.drafts)
            self.rule = ShapeRule(self.shape.parents)
        for draft in drafter.drafts:
            draft.tree.rule = self.rule
        live: list[tuple[Draft, list[int], list[TreeShape]]] = [
            (draft, [0], [self.shape]) for draft in drafter.drafts
        ]
        while live := _with_children(drafter, live):
            forward = drafter.expand([(draft, nodes) for draft, nodes, _ in live])
            widest = max(len(shape.children) for _, _, shapes in live for shape in shapes)
            likeliest = iter(enumerate(forward.top_tokens(widest)))
            grown = []
            for draft, nodes, shapes in live:
                added: list[int] = []
                below: list[TreeShape] = []
                for node, shape, (row, tokens) in zip(nodes, shapes, likeliest, strict=False):
                    added += [
                        draft.tree.add(token, node, forward, row)
                        for token in tokens[: len(shape.children)]
                    ]
                    below += shape.children[: len(tokens)]
                grown.append((draft, added, below))
            live = grown

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        reached = {0: 1.0}
        ranks = Counter[int]()
        for node in nodes:
            parent = draft.tree.parents[node]
            reached[node] = reached[parent] * self.chances[ranks[parent]]
            ranks[parent] += 1
        return sum(reached.values()) - 1

    def _choose_shape(self, drafts: "Sequence[Draft]") -> TreeShape:
        def verifying_s(size: int) -> float:
            return answer_s(self.latencies, drafts, [size - 1] * len(drafts))

        return fastest(
            self.chances, self.sizes, self.levels, draft_s(self.latencies, drafts, 1), verifying_s
        )


def _with_children(
    drafter: "Drafter", live: "list[tuple[Draft, list[int], list[TreeShape]]]"
) -> "list[tuple[Draft, list[int], list[TreeShape]]]":
    """Return the nodes of a level that have children, for the trees with room for all of these
    children.
    """
    levels = []
    for draft, nodes, shapes in live:
        inner = [(node, shape) for node, shape in zip(nodes, shapes, strict=True) if shape.children]
        if inner and drafter.room(draft) >= sum(len(shape.children) for _, shape in inner):
            levels.append((draft, [node for node, _ in inner], [shape for _, shape in inner]))
    return levels
