"""The method `token-recycling`: trees of the candidates that the target named for the same tokens
before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

FIRST_SHARE = 0.5
NEXT_SHARE = 0.4
"""Assumed probabilities by which the tree's shape is chosen: a token's first candidate comes next
with `FIRST_SHARE`, each further one with `NEXT_SHARE` times that of the one before it.
"""


@methods.register("token-recycling")
@dataclass(frozen=True)
class TokenRecycling(Method):
    """Draft a tree of the candidates that the target gave after the same tokens in earlier
    verifications.

    A table holds, for every token, the target's `candidates` most likely next tokens when it was
    last verified, rejected drafts included. The tree of `nodes` tokens and at most `depth` levels
    is filled from the table level by level. Its shape is fixed, and has more nodes below better
    candidates; the paper draws its own, so this one follows from assumed probabilities. The table
    is shared by all requests, so that drafts depend on their order.
    """

    nodes: int = 80
    depth: int = 6
    candidates: int = 8
    drafter: str = field(default="none", init=False)
    source = "Token Recycling, Luo et al. 2024, arXiv 2408.08696"
    reported_result = "about 2 times autoregressive decoding (Vicuna 7B to 33B)"
    group = "draft-free"
    required_capability = Capability.TREES
    draft_limit = "depth"

    def __post_init__(self) -> None:
        self.require_at_least(1, "nodes", "depth", "candidates")

    @property
    def reads_candidates(self) -> int:
        return self.candidates

    @cached_property
    def shape(self) -> "tuple[Place, ...]":
        """Return the places of the tree's nodes, level by level."""
        return likeliest_shape(self.nodes, self.depth, self.candidates)

    def prepare(self, environment: Environment) -> Method:
        environment.require_local_target(self.display_name)
        return self

    def policy(self) -> Policy:
        return _TokenRecyclingPolicy(self.shape)


class Place(NamedTuple):
    """A node of the shape: candidate number `rank` of its parent, which is an earlier place or, as
    -1, the root.
    """

    parent: int
    rank: int


def likeliest_shape(nodes: int, depth: int, candidates: int) -> tuple[Place, ...]:
    """Return the `nodes` places that are reached most likely by the assumed probabilities, level by
    level.
    """
    paths: list[tuple[int, ...]] = []
    waiting: list[tuple[float, int, tuple[int, ...]]] = [(-FIRST_SHARE, 1, (0,))]
    while waiting and len(paths) < nodes:
        chance, level, path = heappop(waiting)
        paths.append(path)
        if path[-1] + 1 < candidates:
            heappush(waiting, (chance * NEXT_SHARE, level, (*path[:-1], path[-1] + 1)))
        if level < depth:
            heappush(waiting, (chance * FIRST_SHARE, level + 1, (*path, 0)))
    paths.sort(key=lambda path: (len(path), path))
    index = {path: place for place, path in enumerate(paths)}
    return tuple(Place(index.get(path[:-1], -1), path[-1]) for path in paths)


class _TokenRecyclingPolicy(Policy):
    def __init__(self, shape: Sequence[Place]) -> None:
        self._shape = shape
        self._after: dict[int, Sequence[int]] = {}
        """Token -> the target's candidates after it when it was last verified."""

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            self._fill(draft, drafter.room(draft))

    def _fill(self, draft: "Draft", room: int) -> None:
        """Fill the shape as far as the table goes; a place without a candidate has nothing below
        it.
        """
        from specbench_kit.decoding.drafting.look_up import LookUpDistribution

        tree = draft.tree
        source = LookUpDistribution("token-recycling", 1.0)
        node_at = {-1: 0}
        candidates: dict[int, Sequence[int]] = {}
        for place, (parent, rank) in enumerate(self._shape):
            above = node_at.get(parent)
            if above is None:
                continue
            if above not in candidates:
                # What a grammar forbids here makes room for the next candidate.
                after = self._after.get(tree.tokens[above], ())
                candidates[above] = [token for token in after if draft.allows(token, above)]
            if rank < len(candidates[above]) and tree.last < room:
                node_at[place] = tree.add(candidates[above][rank], above, source, 0)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for verdict in verdicts:
            tokens = verdict.draft.tree.tokens
            for node, candidates in zip((0, *verdict.submitted), verdict.candidates, strict=True):
                self._after[tokens[node]] = candidates
