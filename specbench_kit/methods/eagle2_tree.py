"""EAGLE-2's dynamic draft trees: they grow level by level, and their most probable nodes are
verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from specbench_kit.methods.base import (
    LATENCIES,
    Capability,
    Environment,
    Group,
    Latencies,
    Method,
    Policy,
    methods,
    require,
)
from specbench_kit.methods.growth import Frontier, GrowingTree, expand, expected_of
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import answer_s, forward_s
from specbench_kit.models.executors.tree_rule import BeamRule

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("eagle2-tree")
@dataclass(frozen=True)
class Eagle2Tree(LatencyAware):
    """Grow `top_k` children of each level's `top_k` most probable nodes, then verify the best
    `total` - 1 nodes.

    A node's likelihood is the product of the draft probabilities from the root to it. `depth`
    levels follow the first one (5 as in the authors' scripts; their library's default is 7).
    EAGLE-2 itself runs with `drafter=head`; any drafter that gives trees will do.

    With `cost=measured` these are limits, and the tree is as large as pays by the latencies of the
    pair. The most probable nodes of all requests are verified, as many as give the batch the most
    expected tokens per second. A further level is grown while it is expected to raise that speed:
    each level is taken to add as much less than the one before as that added less than its own
    predecessor. EAGLE-4 (CAST, arXiv 2510.26577) weighs levels and nodes by such a ratio too, but
    against thresholds of which the values could not be had, so this rule is ours and not verified.
    """

    total: int = 60
    depth: int = 5
    top_k: int = 10
    cost: Literal["none", "measured"] = "none"
    group: ClassVar[Group] = "tree"
    source = (
        "EAGLE-2, Li et al. 2024 (cost=measured: after EAGLE-4, arXiv 2510.26577, not verified)"
    )
    reported_result = "3.05 to 4.26 times autoregressive decoding, 20 to 40% over EAGLE"
    needs = f"with cost=measured: {LATENCIES}"
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        for name, least in (("total", 2), ("depth", 0), ("top_k", 1)):
            require(getattr(self, name) >= least, f"eagle2-tree: {name} must be at least {least}")
        counts = self.link or self.cost == "measured"
        require(counts, "eagle2-tree: link has no effect without cost=measured: no time is weighed")

    @property
    def deepest_draft(self) -> int:
        return self.depth + 1

    @property
    def rule(self) -> BeamRule:
        """Return the rule by which trees of all levels grow."""
        return BeamRule(
            levels=self.depth + 1,
            beams=self.top_k,
            branch=self.top_k,
            budget=self.total - 1,
            newest_only=True,
        )

    def prepare(self, environment: Environment) -> Method:
        return self if self.cost == "none" else super().prepare(environment)

    def policy(self) -> Policy:
        return _Eagle2Policy(self) if self.cost == "none" else super().policy()

    def policy_with(self, latencies: Latencies) -> Policy:
        return _MeasuredPolicy(self, latencies)


class _Eagle2Policy(Policy):
    def __init__(self, options: Eagle2Tree) -> None:
        self._options = options
        self._rule = options.rule
        self._trees: list[GrowingTree] = []

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            draft.tree.rule = self._rule
        frontier = self._begin(drafter)
        for _ in range(self._options.depth + 1):
            frontier = self._next_level(drafter, frontier)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [tree.selected for tree in self._trees]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_of(self._trees, draft, nodes)

    def _begin(self, drafter: "Drafter") -> Frontier:
        """Return the roots of new trees, which are forwarded first."""
        self._trees = [
            GrowingTree(draft, self._options.total - 1, decay=1.0) for draft in drafter.drafts
        ]
        return [(tree, [tree.root]) for tree in self._trees]

    def _next_level(self, drafter: "Drafter", frontier: Frontier) -> Frontier:
        """Forward one level and return the most probable of the nodes that it adds.

        A node that is not among the most probable `total` - 1 so far never will be, nor any node
        below it: it is dropped.
        """
        frontier = [
            (tree, nodes) for tree, nodes in frontier if nodes and drafter.room(tree.draft) > 0
        ]
        if not frontier:
            return []
        forward, first_rows = expand(drafter, frontier)
        level: Frontier = []
        for (tree, nodes), first in zip(frontier, first_rows, strict=False):
            newest = tree.draft.tree.last
            tree.add_children(nodes, forward, first, self._options.top_k, drafter.room(tree.draft))
            level.append(
                (tree, tree.best([n for n in tree.selected if n > newest], self._options.top_k))
            )
        return level


class _Verification(NamedTuple):
    """A verification of the most probable nodes of a batch."""

    lengths: list[int]
    """The number of nodes of each request."""
    expected: float
    """The expected committed tokens of the batch."""
    seconds: float
    """The seconds of the round, drafting and link included."""

    @property
    def rate(self) -> float:
        """The expected tokens per second."""
        return self.expected / self.seconds


class _MeasuredPolicy(_Eagle2Policy):
    """Grows trees level by level while this is expected to be faster, and verifies as many nodes as
    is fastest.
    """

    def __init__(self, options: Eagle2Tree, latencies: Latencies) -> None:
        super().__init__(options)
        self._latencies = latencies
        self._lengths: list[int] = []

    def draft(self, drafter: "Drafter") -> None:
        frontier = self._begin(drafter)
        drafting_s = 0.0
        expected, gain = 0.0, float(len(self._trees))  # the targets' own tokens
        for _ in range(self._options.depth + 1):
            drafting_s += self._level_s(frontier)
            frontier = self._next_level(drafter, frontier)
            best = self._fastest(drafting_s)
            self._lengths = best.lengths
            reached = sum(tree.expected(tree.selected) for tree in self._trees)
            before = gain
            gain = reached - expected
            expected = reached
            further = [
                (tree, nodes) for tree, nodes in frontier if nodes and drafter.room(tree.draft) > 0
            ]
            if not further or not gain:
                return
            promised = (best.expected + gain * gain / before) / (
                best.seconds + self._level_s(further)
            )
            if promised <= best.rate:
                return

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [
            tree.best(tree.selected, length)
            for tree, length in zip(self._trees, self._lengths, strict=True)
        ]

    def _level_s(self, frontier: Frontier) -> float:
        """Return the seconds of one forward of these nodes."""
        return forward_s(
            self._latencies,
            [
                (len(nodes), tree.draft.context_length - 1 + len(tree.forwarded))
                for tree, nodes in frontier
            ],
        )

    def _fastest(self, drafting_s: float) -> _Verification:
        """Return the verification with the most expected tokens per second, of the fewest nodes
        among equals.
        """
        drafts = [tree.draft for tree in self._trees]
        lengths = [0] * len(drafts)
        expected = float(len(drafts))
        best = _Verification(
            lengths, expected, drafting_s + answer_s(self._latencies, drafts, lengths)
        )
        likeliest = sorted(
            (
                (tree.expected([node]), row)
                for row, tree in enumerate(self._trees)
                for node in tree.selected
            ),
            key=lambda pair: -pair[0],
        )
        for chance, row in likeliest:
            lengths = [length + (number == row) for number, length in enumerate(lengths)]
            expected += chance
            tried = _Verification(
                lengths, expected, drafting_s + answer_s(self._latencies, drafts, lengths)
            )
            best = max(best, tried, key=lambda verification: verification.rate)
        return best
