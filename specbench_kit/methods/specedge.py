"""Trees on the edge that continue to grow, below a guess of the server's answer, while the server
verifies.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING, ClassVar, Literal

from specbench_kit.methods.base import Capability, Group, Method, Policy, methods, require
from specbench_kit.methods.growth import GrowingTree, expand, grow
from specbench_kit.models.executors.tree_rule import BeamRule

if TYPE_CHECKING:
    from specbench_kit.decoding.clock import Clock
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

DECAY = 0.9
"""Factor on every draft probability (SpecExec)."""
AHEAD_DECAY = 0.95
"""The same for what is drafted ahead, as in the authors' code."""
FIRST_DEPTH = 5
"""Levels of the first round, before any time is known."""


@methods.register("specedge")
@dataclass(frozen=True)
class SpecEdge(Method):
    """Draft a tree of the `budget` most probable tokens, and draft ahead below its best path during
    verification.

    Each level forwards at most `beams` nodes with `branch` children each. `depth` is the number of
    levels; `auto` fills the time of a verification less the round trip. Drafting ahead adds at most
    `proactive_depth` levels, which are used only if the answer is exactly the guess;
    `proactive=false` turns it off. What is drafted ahead keeps to the budget, where the authors'
    code keeps every node that it adds. The next round then grows the kept tree by `depth` levels as
    always or, with `proactive_type=included`, by `proactive_depth` levels fewer, so that it begins
    sooner. `tree=chain` drafts and guesses one chain, of the most probable tokens as in trees.

    With n levels, the guess is right about as often as n + 1 first choices of the draft model in a
    row. Drafting ahead therefore pays with few levels or a very certain draft, and hardly matters
    at 7 levels (`skit reproduce specedge/drafting-ahead`).
    """

    budget: int = 32
    beams: int = 32
    depth: int | Literal["auto"] = "auto"
    branch: int = 16
    proactive: bool = True
    proactive_depth: int = 3
    proactive_type: Literal["excluded", "included"] = "excluded"
    tree: Literal["tree", "chain"] = "tree"
    source = "SpecEdge, Park et al. 2025"
    reported_result = (
        "2.22 times the server-only tree's throughput, 1.91 times its tokens per dollar"
    )
    group: ClassVar[Group] = "overlapping"
    proposal = "top"
    required_capability = Capability.TREES
    overlaps = True

    def __post_init__(self) -> None:
        self.require_at_least(1, "budget", "beams", "branch", "proactive_depth")
        require(
            self.depth == "auto" or self.depth >= 1,
            f"specedge: depth must be auto or at least 1, not {self.depth}",
        )

    @property
    def submits_trees(self) -> bool:
        return self.tree == "tree"

    def policy(self) -> Policy:
        return _SpecEdgePolicy(self)


def calibrated_depth(verify_s: float, rtt_s: float, step_s: float) -> int:
    """Return the number of levels that fill the time of a verification less the round trip
    (SpecEdge); at least 1.
    """
    return max(1, round((verify_s - rtt_s) / step_s))


class _SpecEdgePolicy(Policy):
    def __init__(self, options: SpecEdge) -> None:
        self.options = options
        self.beams, self.branch = (
            (1, 1) if options.tree == "chain" else (options.beams, options.branch)
        )
        self.trees: list[GrowingTree] = []
        self.guesses: dict[str, GrowingTree] = {}
        """The trees below a guessed answer, by request."""
        self.confirmed: dict[str, GrowingTree] = {}

    def draft(self, drafter: "Drafter") -> None:
        depth = self._depth(drafter.clock)
        drafted_ahead = self.confirmed.keys() & {d.request_id for d in drafter.drafts}
        counted = self.options.proactive_depth if self.options.proactive_type == "included" else 0
        live = self.trees = [self._start_tree(draft) for draft in drafter.drafts]
        for tree in self.trees:
            tree.draft.tree.rule = self._rule(depth, tree)
        for level in range(depth):
            if level >= depth - counted:
                live = [tree for tree in live if tree.draft.request_id not in drafted_ahead]
            live = grow(drafter, live, self.beams, self.branch)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [tree.selected for tree in self.trees]

    def overlap(self, drafter: "Drafter") -> None:
        if not self.options.proactive:
            return
        live = self._guess(drafter)
        self.guesses = {tree.draft.request_id: tree for tree in live}
        # In a budget of one token there is room for the guess alone.
        for _ in range(self.options.proactive_depth if self.options.budget > 1 else 0):
            live = grow(
                drafter,
                [tree for tree in live if drafter.awaits_answer(tree.draft)],
                self.beams,
                self.branch,
            )

    def next_root(self, verdict: "Verdict") -> int | None:
        guess = self.guesses.pop(verdict.draft.request_id, None)
        if guess is None or not _aligned(guess, verdict):
            return None
        self.confirmed[verdict.draft.request_id] = guess
        return guess.root

    def forget(self, request_id: str) -> None:
        self.guesses.pop(request_id, None)
        self.confirmed.pop(request_id, None)

    def _start_tree(self, draft: "Draft") -> GrowingTree:
        guess = self.confirmed.pop(draft.request_id, None)
        budget = self.options.budget
        return (
            GrowingTree(draft, budget, DECAY)
            if guess is None
            else guess.below_root(draft, budget, DECAY)
        )

    def _rule(self, depth: int, tree: GrowingTree) -> BeamRule | None:
        """Return the rule by which a tree grows from its root; None where it does not begin there,
        and where `depth` follows from the measured time of a level.
        """
        if self.options.depth == "auto" or tree.forwarded:
            return None
        return BeamRule(depth, self.beams, self.branch, self.options.budget, DECAY)

    def _depth(self, clock: "Clock") -> int:
        if self.options.depth != "auto":
            return int(self.options.depth)
        verify_s, rtt_s, step_s = (clock.typical_s(phase) for phase in ("verify", "link", "draft"))
        return calibrated_depth(verify_s, 2 * rtt_s, step_s) if verify_s and step_s else FIRST_DEPTH

    def _guess(self, drafter: "Drafter") -> list[GrowingTree]:
        """Return a new tree per request, whose root is the most probable token after any leaf.

        The root is one of the `budget` tokens that are drafted ahead.
        """
        trees = [
            t for t in self.trees if drafter.awaits_answer(t.draft) and drafter.room(t.draft) > 0
        ]
        frontier = [(tree, [n for n in tree.leaves if n not in tree.forwarded]) for tree in trees]
        frontier = [(tree, nodes) for tree, nodes in frontier if nodes]
        if frontier:
            forward, first_rows = expand(drafter, frontier)
            for (tree, nodes), first in zip(frontier, first_rows, strict=False):
                tree.record_forward(nodes, forward, first)
        budget = max(1, self.options.budget - 1)
        return [
            GrowingTree(tree.draft, budget, AHEAD_DECAY, root=_best_answer(tree)) for tree in trees
        ]


def _best_answer(tree: GrowingTree) -> int:
    """Append the most probable next token after any leaf and return its node."""
    leaves: defaultdict[DraftForward, list[int]] = defaultdict(list)
    for leaf in tree.leaves:
        leaves[tree.forwarded[leaf][0]].append(leaf)
    best = (-inf, 0, 0)
    # Leaves of one forward are compared at once, in the order of their best leaf.
    tops = {forward: max(map(tree.scores.__getitem__, nodes)) for forward, nodes in leaves.items()}
    for forward in sorted(tops, key=tops.__getitem__, reverse=True):
        if tops[forward] < best[0]:  # no pair scores above its leaf
            break
        nodes = leaves[forward]
        rows = [tree.forwarded[node][1] for node in nodes]
        bases = [tree.scores[node] for node in nodes]
        ((score, index, token),) = forward.likeliest(rows, bases, 1, 1)
        best = max(best, (score, nodes[index], token))
    score, leaf, token = best
    return tree.add(leaf, token, score + log(AHEAD_DECAY))


def _aligned(guess: GrowingTree, verdict: "Verdict") -> bool:
    """Return True if the accepted path ends at the guess's parent and the bonus token is the guess
    (SpecEdge).
    """
    tree = guess.draft.tree
    end = verdict.path[-1] if verdict.path else 0
    return tree.parents[guess.root] == end and tree.tokens[guess.root] == verdict.bonus
