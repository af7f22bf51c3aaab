"""What a policy may decide: what to draft and what to verify, round by round or level by level."""

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
    """A node of a pipeline's next level.

    `parent` is the parent's row in the last level, `score` the log-probability of the path down to the node.
    """

    parent: int
    token: int
    score: float


class Chains(NamedTuple):
    """The drafts of one request at every offset of its answer, each of which may become a round's
    draft.

    `statistics` [offsets, tokens, 5] describes the drafted tokens in the order of `NodeStats`; `right` [offsets,
    tokens] is true where the target's answer, up to its end, has the drafted token at that position.
    """

    statistics: "NDArray[np.float64]"
    right: "NDArray[np.bool_]"

    @property
    def entropy(self) -> "NDArray[np.float64]":
        """The entropy [offsets, tokens] of the distribution from which each token was drawn, in
        nats.
        """
        return self.statistics[..., 1]

    @property
    def margin(self) -> "NDArray[np.float64]":
        """The lead [offsets, tokens] of the most probable token over the second."""
        return self.statistics[..., 2]

    @property
    def probability(self) -> "NDArray[np.float64]":
        """The probability [offsets, tokens] of each drafted token."""
        return self.statistics[..., 4]


@dataclass(frozen=True, slots=True)
class StopRule:
    """A rule for where a chain ends: after `most` tokens, or at the first token that `stops` marks.

    `stops` returns bool [offsets, tokens]; without it no token is marked. A marked token is sent if `sends_last`, and
    withheld otherwise. `chances` returns, for every token, the probability [offsets, tokens] that it is accepted if
    all tokens before it are.
    """

    most: int
    stops: "Callable[[Chains], NDArray[np.bool_]] | None" = None
    sends_last: bool = True
    chances: "Callable[[Chains], NDArray[np.float64]] | None" = None


def expected_accepted(chances: Iterable[float]) -> float:
    """Return the expected number of accepted tokens of a chain.

    `chances` holds each token's probability of being accepted if all tokens before it are.
    """
    total: float = sum(accumulate(chances, mul))
    return total


class Policy:
    """Decides what to draft and what to verify in each round; one object serves all requests of a
    run.

    What a policy is given is for reading: the engine owns forwards, KV, randomness, clock and
    records. Only `draft` is needed. A round calls `draft`, `choose`, `overlap`, `next_root` of
    every request, `observe` and `expects` of every request, in this order, and `forget` where a
    request has ended. What the hooks up to `observe` take counts as time of the round, in seconds
    on the clock of the run.
    """

    @property
    def stop_rule(self) -> StopRule | None:
        """The rule that describes the policy fully, if it only stops each chain by the chain's own
        tokens.

        A replay then computes all rounds as arrays, without the loop. A subclass that overrides
        `draft` or `choose` must return its own rule or None. A replay reads it before it begins.

        ```python
        @property
        def stop_rule(self):
            return StopRule(most=8, stops=lambda chains: chains.probability < 0.4)
        ```
        """
        return None

    def draft(self, drafter: "Drafter") -> None:
        """Grow the trees of `drafter.drafts` by calling `drafter.extend` or `drafter.expand`.

        It is called first in every round, once for all requests that are decoded together:
        `drafter.drafts` has one draft per request, whose tree holds the last committed token (node
        0) and what was kept of `overlap`. A request whose draft does not grow decodes plainly in
        this round.

        ```python
        def draft(self, drafter):
            growing = list(drafter.drafts)
            while growing := [draft for draft in growing if draft.tree.drafted < 4]:
                growing = drafter.extend(growing)  # one token more for those that have room
                growing = [draft for draft in growing if draft.tree.probability(draft.tree.last) > 0.4]
        ```
        """

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        """Return for each draft the nodes to verify, parents before children; by default all nodes.

        It is called once after `draft`, with the same drafts in the same order. Node 0 is the root,
        which no list has. Under sampling, whether a node is verified must not depend on which token
        was drawn for it: where the policy read the probability of a drawn token, or what follows
        it, the run ends if the token is left out.

        ```python
        def choose(self, drafts):
            return [[node for node in (1, 2) if node < len(draft.tree)] for draft in drafts]  # two tokens of a chain
        ```
        """
        return [list(range(1, len(draft.tree))) for draft in drafts]

    def overlap(self, drafter: "Drafter") -> None:
        """Draft while the target verifies the chosen nodes; the verdicts are not known yet.

        It is called once after the chosen nodes were sent. `drafter.awaits_answer` is False for a
        draft whose verdict is here, and what is drafted takes no time of the round as long as the
        target computes. The method's `overlaps` is True for a policy that does this.

        ```python
        def overlap(self, drafter):
            waiting = list(drafter.drafts)
            for _ in range(4):
                waiting = [draft for draft in waiting if drafter.awaits_answer(draft)]
                waiting = drafter.extend(waiting) if waiting else []
        ```
        """

    def next_root(self, verdict: "Verdict") -> int | None:
        """Return the node, drafted in `overlap`, that is the verdict's bonus token: the next
        round's root.

        It is called once per request when its verdict is here, with the tree as it was drafted. The
        node must lie below the last accepted one and hold the token `verdict.bonus`; None begins
        the next round with an empty tree.

        ```python
        def next_root(self, verdict):
            tree = verdict.draft.tree
            node = len(verdict.path) + 1  # in a chain, the one below the accepted tokens
            return node if node < len(tree) and tree.tokens[node] == verdict.bonus else None
        ```
        """
        return None

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float | None:
        """Return how many of the verified `nodes` the policy expected to be accepted.

        This is the sum over the nodes of the probability that the node and all above it are
        accepted; None if the policy does not decide by probabilities. It is called after the round,
        and its time is charged to no request.

        ```python
        def expects(self, draft, nodes):
            return sum(draft.tree.path_probability(node) for node in nodes)  # a number of tokens
        ```
        """
        return None

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        """Learn from the verdicts of one round.

        It is called once per round, after its tokens were committed, with one verdict per request of the batch:
        `submitted` are the verified nodes, `path` the accepted ones among them.

        ```python
        def observe(self, verdicts):
            for verdict in verdicts:
                accepted = len(verdict.path)
                all_of_them = accepted == len(verdict.submitted)
                self.lengths[verdict.draft.request_id] = accepted + 1 if all_of_them else max(1, accepted)
        ```
        """

    def forget(self, request_id: str) -> None:
        """Forget a finished request; another request may later come under its id.

        It is called once per request, when its answer has ended.

        ```python
        def forget(self, request_id):
            self.lengths.pop(request_id, None)
        ```
        """


class RunsAheadPolicy(Policy):
    """Drafts a chain on while no verdict is here, up to `longest` tokens, and goes on from what was
    right.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def overlap(self, drafter: "Drafter") -> None:
        live = list(drafter.drafts)
        while live := [
            draft
            for draft in live
            if draft.tree.last < self.longest and drafter.awaits_answer(draft)
        ]:
            live = drafter.extend(live)

    def next_root(self, verdict: "Verdict") -> int | None:
        tree = verdict.draft.tree
        node = len(verdict.path) + 1  # the draft is a chain
        return node if node < len(tree) and tree.tokens[node] == verdict.bonus else None


class LevelPolicy:
    """Decides what to feed to a pipeline, level by level; one object serves all requests of a
    run.
    """

    def next_level(
        self, probabilities: "Tensor", scores: Sequence[float], room: int
    ) -> list[Child]:
        """Return at most `room` nodes below those of the last level.

        Row i of `probabilities` [nodes, vocabulary] is the draft model's distribution after the last level's node i;
        `scores[i]` is that node's log-probability, in nats. It is called once per request and step of the pipeline.

        ```python
        def next_level(self, probabilities, scores, room):
            best = probabilities.max(dim=-1)  # one child below each node of the last level
            rows = zip(best.indices.tolist(), best.values.log().tolist(), scores)
            children = [Child(row, token, score + chance) for row, (token, chance, score) in enumerate(rows)]
            return children[:room]
        ```
        """
        return []

    def forget(self, request_id: str) -> None:
        """Forget a finished request; another request may later come under its id."""
