"""What a policy may do: decide what to draft and what to verify, round by round or level by level."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a list of methods needs no torch
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


class Child(NamedTuple):
    """A node of a pipeline's next level: the place of its parent in the last level, and its log-probability so far."""

    parent: int
    token: int
    score: float


class Chains(NamedTuple):
    """What was drafted for a request at every offset of its answer, each a place where a round may begin.

    `statistics` [offsets, tokens, 5] are those of the drafted tokens, as `NodeStats` has them; `right` [offsets,
    tokens] says whether the answer, up to its end, has the very token at that place.
    """

    statistics: "NDArray[np.float64]"
    right: "NDArray[np.bool_]"


@dataclass(frozen=True, slots=True)
class StopRule:
    """Where a chain ends: after `most` tokens, or with the first one that `stops` marks, which is kept back or sent.

    `stops` gives bool [offsets, tokens]; without it no token is marked. `chances` [offsets, tokens] are those that it
    gives every token of being accepted where those before it are.
    """

    most: int
    stops: "Callable[[Chains], NDArray[np.bool_]] | None" = None
    sends_last: bool = True
    chances: "Callable[[Chains], NDArray[np.float64]] | None" = None


def expected_accepted(chances: Iterable[float]) -> float:
    """Tokens of a chain that are accepted at a mean, by the chance of each where those before it are."""
    total: float = sum(accumulate(chances, mul))
    return total


class Policy:
    """Decides what to draft and what to verify in each round; one object serves all requests of a run.

    Views are for reading: the loop owns forwards, KV, randomness, clock and records.
    """

    @property
    def stop_rule(self) -> StopRule | None:
        """All that it does, where that is to stop each chain by its own tokens alone: a replay then needs no loop.

        A subclass with another `draft` or `choose` has to give another rule, or None.
        """
        return None

    def draft(self, drafter: "Drafter") -> None:
        """Grow the trees of `drafter.drafts` by calling `drafter.extend` or `drafter.expand`."""

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        """For each draft the tree nodes worth verifying, parents before children; by default all of them."""
        return [list(range(1, len(draft.tree))) for draft in drafts]

    def overlap(self, drafter: "Drafter") -> None:
        """Go on drafting while the target verifies what was chosen; the verdicts are not known yet."""

    def next_root(self, verdict: "Verdict") -> int | None:
        """The node, drafted in `overlap`, that turned out to be the verdict's extra token: the next round's root."""
        return None

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float | None:
        """How many of the `nodes` that were verified it reckoned with to be accepted.

        This is the sum over them of the chance that a node and all above it are; None where it decides by no chance.
        It is asked when the round is over, and its time counts for nobody.
        """
        return None

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        """Learn from the outcome of one round."""

    def forget(self, request_id: str) -> None:
        """A request has ended: another one may come under its id."""


class LevelPolicy:
    """Decides what to feed to a pipeline, level by level; one object serves all requests of a run."""

    def next_level(self, probabilities: "Tensor", scores: Sequence[float], room: int) -> list[Child]:
        """At most `room` nodes below those of the last level.

        Row i of `probabilities` [nodes, vocabulary] is what the draft model expects after the last level's node i;
        `scores[i]` is the log-probability of that node.
        """
        return []

    def forget(self, request_id: str) -> None:
        """A request has ended: another one may come under its id."""
