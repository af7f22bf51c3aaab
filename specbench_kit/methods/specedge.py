"""Trees on the edge that go on growing, below a guess of the answer, while the server verifies."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING, ClassVar, Literal

from specbench_kit.methods.base import Capability, Group, Method, Policy, methods, require
from specbench_kit.methods.growth import Growth, expand, grow

if TYPE_CHECKING:
    from specbench_kit.decoding.clock import Clock
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

DECAY = 0.9
"""Factor on every draft probability (SpecExec)."""
FIRST_DEPTH = 5
"""Of the first round, before anything was timed."""


@methods.register("specedge")
@dataclass(frozen=True)
class SpecEdge(Method):
    """Draft a tree of the `budget` likeliest tokens, and go on below the likeliest answer while it is verified.

    Each level forwards at most `beams` nodes with `branch` children each. `depth=auto` drafts for as long as a
    verification takes beyond the round trip. What was drafted meanwhile, for `proactive_depth` levels at most, is kept
    if the answer is exactly the guess. `tree=chain` drafts and guesses a single line.

    The guess is right about as often as the draft's first choice to the power of the levels and one. So drafting ahead
    pays with few levels or a very sure draft, and hardly tells at 7 levels (`skit reproduce specedge/drafting-ahead`).
    """

    budget: int = 32
    beams: int = 32
    depth: int | Literal["auto"] = "auto"
    branch: int = 16
    proactive: bool = True
    proactive_depth: int = 3
    tree: Literal["tree", "chain"] = "tree"
    source = "SpecEdge, Park et al. 2025"
    reported_result = "2.22 times the server-only tree's throughput, 1.91 times its tokens per dollar"
    group: ClassVar[Group] = "overlapping"
    proposal = "top"
    required_capability = Capability.TREES
    overlaps = True

    def __post_init__(self) -> None:
        for name in ("budget", "beams", "branch", "proactive_depth"):
            require(getattr(self, name) >= 1, f"specedge: {name} must be at least 1, not {getattr(self, name)}")
        require(
            self.depth == "auto" or self.depth >= 1, f"specedge: depth must be auto or at least 1, not {self.depth}"
        )

    def policy(self) -> Policy:
        return _SpecEdgePolicy(self)


def calibrated_depth(verify_s: float, rtt_s: float, step_s: float) -> int:
    """Levels that fill the time in which the server verifies, less the round trip (SpecEdge)."""
    return max(1, round((verify_s - rtt_s) / step_s))


class _SpecEdgePolicy(Policy):
    def __init__(self, options: SpecEdge) -> None:
        self.options = options
        self.beams, self.branch = (1, 1) if options.tree == "chain" else (options.beams, options.branch)
        self.growths: list[Growth] = []
        self.guesses: dict[str, Growth] = {}
        """Trees below a guessed answer, by request."""
        self.confirmed: dict[str, Growth] = {}

    def draft(self, drafter: "Drafter") -> None:
        live = self.growths = [self._begin(draft) for draft in drafter.drafts]
        for _ in range(self._depth(drafter.clock)):
            live = grow(drafter, live, self.beams, self.branch)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [growth.kept for growth in self.growths]

    def overlap(self, drafter: "Drafter") -> None:
        if not self.options.proactive:
            return
        live = self._guess(drafter)
        self.guesses = {growth.draft.request_id: growth for growth in live}
        for _ in range(self.options.proactive_depth):
            live = grow(drafter, [g for g in live if drafter.awaits_answer(g.draft)], self.beams, self.branch)

    def next_root(self, verdict: "Verdict") -> int | None:
        guess = self.guesses.pop(verdict.draft.request_id, None)
        if guess is None or not _aligned(guess, verdict):
            return None
        self.confirmed[verdict.draft.request_id] = guess
        return guess.root

    def forget(self, request_id: str) -> None:
        self.guesses.pop(request_id, None)
        self.confirmed.pop(request_id, None)

    def _begin(self, draft: "Draft") -> Growth:
        guess = self.confirmed.pop(draft.request_id, None)
        return Growth(draft, self.options.budget, DECAY) if guess is None else guess.below_root(draft)

    def _depth(self, clock: "Clock") -> int:
        if self.options.depth != "auto":
            return int(self.options.depth)
        verify_s, rtt_s, step_s = (clock.typical_s(phase) for phase in ("verify", "link", "draft"))
        return calibrated_depth(verify_s, 2 * rtt_s, step_s) if verify_s and step_s else FIRST_DEPTH

    def _guess(self, drafter: "Drafter") -> list[Growth]:
        """The likeliest token after any leaf becomes the root of a new tree."""
        trees = [g for g in self.growths if drafter.awaits_answer(g.draft) and drafter.room(g.draft) > 0]
        frontier = [(growth, [n for n in growth.leaves if n not in growth.forwarded]) for growth in trees]
        frontier = [(growth, nodes) for growth, nodes in frontier if nodes]
        if frontier:
            forward, first_rows = expand(drafter, frontier)
            for (growth, nodes), first in zip(frontier, first_rows, strict=False):
                growth.note(nodes, forward, first)
        return [Growth(growth.draft, self.options.budget, DECAY, root=_best_answer(growth)) for growth in trees]


def _best_answer(growth: Growth) -> int:
    """Append the best pair of a leaf and its next token."""
    leaves: defaultdict[DraftForward, list[int]] = defaultdict(list)
    for leaf in growth.leaves:
        leaves[growth.forwarded[leaf][0]].append(leaf)
    best = (-inf, 0, 0)
    tops = {forward: max(map(growth.scores.__getitem__, nodes)) for forward, nodes in leaves.items()}
    for forward in sorted(tops, key=tops.__getitem__, reverse=True):
        if tops[forward] < best[0]:  # no pair scores above its leaf
            break
        nodes = leaves[forward]
        rows, bases = [growth.forwarded[node][1] for node in nodes], [growth.scores[node] for node in nodes]
        ((score, place, token),) = forward.likeliest(rows, bases, 1, 1)
        best = max(best, (score, nodes[place], token))
    score, leaf, token = best
    return growth.add(leaf, token, score + log(DECAY))


def _aligned(guess: Growth, verdict: "Verdict") -> bool:
    """Complete draft alignment: the accepted path ends at the guess's parent, and the extra token is the guess."""
    tree = guess.draft.tree
    end = verdict.path[-1] if verdict.path else 0
    return tree.parents[guess.root] == end and tree.tokens[guess.root] == verdict.bonus
