"""A token tree of one fixed shape."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple, cast

from specbench_kit.methods.base import Capability, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.distributions import Distributions, DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.tree import TokenTree
    from specbench_kit.decoding.verification import Verdict


@methods.register("specinfer")
@dataclass(frozen=True)
class SpecInfer(Method):
    """Draft the same tree in every round: at depth i every node has the `branching[i]` most likely children.

    The default is SpecInfer's tree of 20 tokens: `branching=1-1-3-1-1-1-1-1`. With `guesses` it drafts asynchronously:
    while a tree is verified, the next one grows below each of so many outcomes, the likeliest by the draft model's own
    chances. An outcome is the last token that the target accepts and its own token after it.
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
        require(all(width >= 1 for width in self.branching), f"specinfer: branching must be of 1 and more, not {shape}")
        require(self.guesses >= 0, f"specinfer: guesses must be at least 0, not {self.guesses}")

    @property
    def overlaps(self) -> bool:
        return self.guesses > 0

    def policy(self) -> Policy:
        return _SpecInferPolicy(self.branching, self.guesses)


class _Frontier(NamedTuple):
    """The nodes that a tree, or several of one request, have gained last, `level` levels below where it begins."""

    draft: "Draft"
    nodes: Sequence[int]
    level: int


@dataclass
class _SpecInferPolicy(Policy):
    branching: tuple[int, ...]
    guesses: int = 0
    outcomes: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Of a request that is verified: node by the last accepted node and the target's token after it."""

    def draft(self, drafter: "Drafter") -> None:
        self._grow(drafter, [_bottom(draft) for draft in drafter.drafts], lambda _: True)

    def overlap(self, drafter: "Drafter") -> None:
        waiting = [
            draft for draft in drafter.drafts if drafter.awaits_answer(draft) and drafter.room(draft) >= self.guesses
        ]
        if not self.guesses or not waiting:
            return
        leaves = [_bottom(draft).nodes for draft in waiting]
        forward, row, ahead = drafter.expand(list(zip(waiting, leaves, strict=True))), 0, []
        for draft, nodes in zip(waiting, leaves, strict=True):
            after = {leaf: (forward, row + place) for place, leaf in enumerate(nodes)}
            row += len(nodes)
            outcomes = self.outcomes[draft.request_id] = _likeliest_outcomes(draft.tree, after, self.guesses)
            ahead.append(_Frontier(draft, list(outcomes.values()), 0))
        self._grow(drafter, ahead, drafter.awaits_answer)

    def next_root(self, verdict: "Verdict") -> int | None:
        end = verdict.path[-1] if verdict.path else 0
        return self.outcomes.pop(verdict.draft.request_id, {}).get((end, verdict.bonus))

    def forget(self, request_id: str) -> None:
        self.outcomes.pop(request_id, None)

    def _grow(self, drafter: "Drafter", frontier: list[_Frontier], goes_on: "Callable[[Draft], bool]") -> None:
        """Level by level, each whole or not at all, down to the last of the shape."""
        while frontier := [one for one in frontier if goes_on(one.draft) and self._fits(drafter, one)]:
            forward = drafter.expand([(draft, nodes) for draft, nodes, _ in frontier])
            widest = max(self.branching[one.level] for one in frontier)
            children = iter(forward.probabilities.topk(min(widest, forward.probabilities.shape[-1])).indices.tolist())
            rows = iter(range(sum(len(nodes) for _, nodes, _ in frontier)))
            frontier = [
                _Frontier(
                    draft,
                    [
                        draft.tree.add(token, node, forward, row)
                        for node, row, tokens in zip(nodes, rows, children, strict=False)
                        for token in tokens[: self.branching[level]]
                    ],
                    level + 1,
                )
                for draft, nodes, level in frontier
            ]

    def _fits(self, drafter: "Drafter", one: _Frontier) -> bool:
        """Whether there is another level, and room for it."""
        return one.level < len(self.branching) and drafter.room(one.draft) >= self.branching[one.level] * len(one.nodes)


def _bottom(draft: "Draft") -> _Frontier:
    """The deepest nodes: a tree grows level by level, so the newest node is one of them."""
    tree = draft.tree
    level = tree.depth(tree.last)
    return _Frontier(draft, [node for node in range(len(tree)) if tree.depth(node) == level], level)


def _likeliest_outcomes(
    tree: "TokenTree", leaves: "Mapping[int, tuple[Distributions, int]]", count: int
) -> dict[tuple[int, int], int]:
    """Append the `count` likeliest tokens that the target may say where the accepted path ends.

    `leaves` have the distributions after them. What was drafted below a node is no such token: it would be
    accepted.
    """
    drafted, chances, after = defaultdict[int, set[int]](set), {0: 1.0}, {**leaves}
    for node, parent in enumerate(tree.parents[1:], 1):
        chances[node] = chances[parent] * tree.probability(node)
        drafted[parent].add(tree.tokens[node])
        after.setdefault(parent, tree.source(node))
    found: list[tuple[float, int, int]] = []
    for node, (source, row) in after.items():
        probabilities = cast("DraftForward", source).probabilities[row]
        best = probabilities.topk(min(count + len(drafted[node]), len(probabilities)))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        found += [(chances[node] * chance, node, token) for chance, token in pairs if token not in drafted[node]]
    return {(node, token): tree.add(token, node, *after[node]) for _, node, token in nlargest(count, found)}
