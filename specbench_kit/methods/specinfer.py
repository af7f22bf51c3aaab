"""A token tree of fixed shape."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple, cast

from specbench_kit.methods.base import Capability, Method, Policy, methods, require
from specbench_kit.models.executors.tree_rule import ShapeRule

if TYPE_CHECKING:
    from specbench_kit.decoding.distributions import Distributions, DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.tree import TokenTree
    from specbench_kit.decoding.verification import Verdict


@methods.register("specinfer")
@dataclass(frozen=True)
class SpecInfer(Method):
    """Draft a tree of the same shape in every round: a node at depth i gets its `branching[i]` most
    likely children.

    The default, `branching=1-1-3-1-1-1-1-1`, is SpecInfer's tree of 20 tokens. `guesses` above 0
    drafts asynchronously: while a tree is verified, the next one grows below that many outcomes,
    the most probable by the draft model's probabilities. An outcome is the last accepted token
    together with the target's bonus token after it. Children are the most probable tokens, also
    under sampling: `sampled-tree:replacement=true` is SpecInfer's multi-step sampling.
    """

    branching: tuple[int, ...] = (1, 1, 3, 1, 1, 1, 1, 1)
    guesses: int = 0
    source = "SpecInfer, Miao et al. 2024"
    reported_result = "1.5 to 2.8 times other engines, models on several GPUs"
    group = "tree"
    proposal = "top"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        shape = "-".join(map(str, self.branching))
        require(
            all(width >= 1 for width in self.branching),
            f"specinfer: branching must be of 1 and more, not {shape}",
        )
        self.require_at_least(0, "guesses")

    @property
    def overlaps(self) -> bool:
        return self.guesses > 0

    @property
    def submits_trees(self) -> bool:
        return max(self.branching, default=1) > 1

    def policy(self) -> Policy:
        return _SpecInferPolicy(self.branching, self.guesses)


class _Frontier(NamedTuple):
    """The newest nodes of a request's tree, or of its trees below several guesses, at depth `level`
    of the shape.
    """

    draft: "Draft"
    nodes: Sequence[int]
    level: int


@dataclass
class _SpecInferPolicy(Policy):
    branching: tuple[int, ...]
    guesses: int = 0
    outcomes: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Drafted nodes of a request in verification, by the last accepted node and the target's token
    after it.
    """
    rule: ShapeRule = field(init=False)

    def __post_init__(self) -> None:
        self.rule = shape_of(self.branching)

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            draft.tree.rule = self.rule if len(draft.tree) == 1 else None
        self._grow(drafter, [_deepest_nodes(draft) for draft in drafter.drafts], lambda _: True)

    def overlap(self, drafter: "Drafter") -> None:
        waiting = [
            draft
            for draft in drafter.drafts
            if drafter.awaits_answer(draft) and drafter.room(draft) >= self.guesses
        ]
        if not self.guesses or not waiting:
            return
        leaves = [_deepest_nodes(draft).nodes for draft in waiting]
        forward = drafter.expand(list(zip(waiting, leaves, strict=True)))
        row = 0
        ahead = []
        for draft, nodes in zip(waiting, leaves, strict=True):
            after = {leaf: (forward, row + index) for index, leaf in enumerate(nodes)}
            row += len(nodes)
            outcomes = self.outcomes[draft.request_id] = _likeliest_outcomes(
                draft.tree, after, self.guesses
            )
            ahead.append(_Frontier(draft, list(outcomes.values()), 0))
        self._grow(drafter, ahead, drafter.awaits_answer)

    def next_root(self, verdict: "Verdict") -> int | None:
        end = verdict.path[-1] if verdict.path else 0
        return self.outcomes.pop(verdict.draft.request_id, {}).get((end, verdict.bonus))

    def forget(self, request_id: str) -> None:
        self.outcomes.pop(request_id, None)

    def _grow(
        self, drafter: "Drafter", frontier: list[_Frontier], may_continue: "Callable[[Draft], bool]"
    ) -> None:
        """Grow the trees level by level to the end of the shape; a level that does not fit is left
        out.
        """
        while frontier := [
            tree for tree in frontier if may_continue(tree.draft) and self._fits(drafter, tree)
        ]:
            forward = drafter.expand([(draft, nodes) for draft, nodes, _ in frontier])
            widest = max(self.branching[level] for _, _, level in frontier)
            children = iter(forward.top_tokens(widest))
            rows = iter(range(sum(len(nodes) for _, nodes, _ in frontier)))
            grown = []
            for draft, nodes, level in frontier:
                added = list[int]()
                # Each tree takes as many rows as it has nodes, and leaves the others to the trees
                # behind it.
                for node, row, tokens in zip(nodes, rows, children, strict=False):
                    added += [
                        draft.tree.add(token, node, forward, row)
                        for token in tokens[: self.branching[level]]
                    ]
                grown.append(_Frontier(draft, added, level + 1))
            frontier = grown

    def _fits(self, drafter: "Drafter", tree: _Frontier) -> bool:
        """Return True if the shape has another level and the drafter has room for it."""
        draft, nodes, level = tree
        return level < len(self.branching) and drafter.room(draft) >= self.branching[level] * len(
            nodes
        )


def shape_of(branching: Sequence[int]) -> ShapeRule:
    """Return the shape in which each node of a level has as many children as `branching` says."""
    parents: list[int] = []
    level = [0]
    for children in branching:
        first = len(parents) + 1
        parents += [node for node in level for _ in range(children)]
        level = list(range(first, len(parents) + 1))
    return ShapeRule(tuple(parents))


def _deepest_nodes(draft: "Draft") -> _Frontier:
    """Return the deepest nodes of a tree; the newest node is one of them, because trees grow level
    by level.
    """
    tree = draft.tree
    level = tree.depth(tree.last)
    return _Frontier(draft, [node for node in range(len(tree)) if tree.depth(node) == level], level)


def _likeliest_outcomes(
    tree: "TokenTree", leaves: "Mapping[int, tuple[Distributions, int]]", count: int
) -> dict[tuple[int, int], int]:
    """Append the `count` most probable bonus tokens and return their nodes, by the last accepted
    node and the token.

    `leaves` gives the distribution after each leaf. A token that was drafted below a node cannot be the bonus token
    after it, because it would be accepted.
    """
    drafted = defaultdict[int, set[int]](set)
    chances = {0: 1.0}
    after = {**leaves}
    for node, parent in enumerate(tree.parents[1:], 1):
        chances[node] = chances[parent] * tree.probability(node)
        drafted[parent].add(tree.tokens[node])
        after.setdefault(parent, tree.source(node))
    candidates: list[tuple[float, int, int]] = []
    for node, (source, row) in after.items():
        probabilities = cast("DraftForward", source).probabilities[row]
        best = probabilities.topk(min(count + len(drafted[node]), len(probabilities)))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        candidates += [
            (chances[node] * chance, node, token)
            for chance, token in pairs
            if token not in drafted[node]
        ]
    return {
        (node, token): tree.add(token, node, *after[node])
        for _, node, token in nlargest(count, candidates)
    }
