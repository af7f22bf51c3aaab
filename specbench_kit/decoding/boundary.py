"""The only place where engines call a policy: its time is charged to it, and its answers are
checked.

A wrong answer is the policy's fault, often that of a plugin, so every error names the method.
"""

from collections.abc import Sequence
from math import isfinite
from typing import cast

from torch import Tensor

from specbench_kit.core.errors import MethodError, PolicyError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.policy import Child, LevelPolicy, Policy
from specbench_kit.decoding.records import EXPECTED_DIGITS
from specbench_kit.decoding.rules import rule_for
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.decoding.watched import FRUITLESS_CALLS, NeverReturnsError, Watch, WatchedDrafter


class CheckedPolicy:
    """The policy of the method `name`, timed and checked."""

    def __init__(self, policy: Policy, name: str, clock: Clock) -> None:
        self._policy = policy
        self._name = name
        self._clock = clock
        self._watch = Watch()
        # A policy that does not override a hook is not called for it: entering a phase would cost
        # time every round.
        kind = type(policy)
        self._overlaps = kind.overlap is not Policy.overlap
        self._observes = kind.observe is not Policy.observe

    def plan(self, drafter: Drafter) -> list[list[int]]:
        """Let the policy draft, and return the nodes of each draft that are to be verified."""
        try:
            with self._clock.phase("policy"):
                with self._watch.hook("draft"):
                    self._policy.draft(_watched(drafter, self._watch))
                with self._watch.hook("choose"):
                    chosen = self._policy.choose(drafter.drafts)
            _check_chosen(drafter.drafts, chosen)
        except (PolicyError, NeverReturnsError) as error:
            raise MethodError(f"{self._name}: {error}") from error
        return chosen

    def overlap(self, drafter: Drafter) -> None:
        """Let the policy draft while the target verifies."""
        if not self._overlaps:
            return
        try:
            with self._clock.overlap(), self._clock.phase("policy"), self._watch.hook("overlap"):
                # It may ask as often as it likes, until the verdict is here.
                self._policy.overlap(_watched(drafter, self._watch, most=None))
        except (PolicyError, NeverReturnsError) as error:
            raise MethodError(f"{self._name}: {error}") from error

    def next_root(self, verdict: Verdict) -> int | None:
        """Return the drafted node at which the next round's tree begins; None if it begins
        empty.
        """
        node = self._policy.next_root(verdict)
        if node is None:
            return None
        tree = verdict.draft.tree
        end = verdict.path[-1] if verdict.path else 0
        if (
            not 0 < node < len(tree)
            or tree.parents[node] != end
            or tree.tokens[node] != verdict.bonus
        ):
            problem = f"next_root gave node {node}, which is not the bonus token after the accepted tokens"
            raise MethodError(f"{self._name}: {problem}")
        return node

    def expects(self, verdict: Verdict) -> float | None:
        """Return how many of the submitted tokens the policy expected to be accepted; None if it
        cannot say.
        """
        expected = self._policy.expects(verdict.draft, verdict.submitted)
        return (
            round(expected, EXPECTED_DIGITS)
            if expected is not None and isfinite(expected)
            else None
        )

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Let the policy learn from the verdicts of the round."""
        if not self._observes:
            return
        try:
            with self._clock.phase("policy"), self._watch.hook("observe"):
                self._policy.observe(verdicts)
        except (PolicyError, NeverReturnsError) as error:
            raise MethodError(f"{self._name}: {error}") from error

    def forget(self, request_id: str) -> None:
        """Let the policy forget a finished request."""
        self._policy.forget(request_id)


class CheckedLevels:
    """The level policy of the method `name`, checked; a pipeline's loop times it together with its
    drafter.
    """

    def __init__(self, policy: LevelPolicy, name: str) -> None:
        self._policy = policy
        self._name = name
        self._watch = Watch()

    def next_level(self, probabilities: Tensor, scores: Sequence[float], room: int) -> list[Child]:
        """Return at most `room` nodes below those of the last level."""
        try:
            with self._watch.hook("next_level"):
                children = self._policy.next_level(probabilities, scores, room)
        except (PolicyError, NeverReturnsError) as error:
            raise MethodError(f"{self._name}: {error}") from error
        parents, vocabulary = probabilities.shape
        problem = (
            f"more than the {room} nodes that there is room for" if len(children) > room else ""
        )
        for child in children[:room]:
            if not 0 <= child.parent < parents:
                problem = f"a child of node {child.parent} of a level of {parents}"
            elif not 0 <= child.token < vocabulary:
                problem = f"token {child.token} of a vocabulary of {vocabulary}"
        if problem:
            raise MethodError(f"{self._name}: next_level gave {problem}")
        return children

    def forget(self, request_id: str) -> None:
        """Let the policy forget a finished request."""
        self._policy.forget(request_id)


def _watched(drafter: Drafter, watch: Watch, most: int | None = FRUITLESS_CALLS) -> Drafter:
    return cast("Drafter", WatchedDrafter(drafter, watch, most))


def _check_chosen(drafts: Sequence[Draft], chosen: Sequence[Sequence[int]]) -> None:
    if len(chosen) != len(drafts):
        raise PolicyError(
            f"choose gave {len(chosen)} lists of nodes for {len(drafts)} requests: give one for each"
        )
    for draft, nodes in zip(drafts, chosen, strict=True):
        tree = draft.tree
        _check_nodes(tree, nodes)
        if not tree.sampled:
            continue
        rule_for(tree, nodes)
        if tree.verification.endswith("replacement"):
            # Whether a sibling is verified must not depend on the tokens that were drawn.
            if len(nodes) < tree.last:
                raise PolicyError("a tree of tokens drawn at random must be verified whole")
            continue
        # A token drawn at random must not have a say in whether it is verified, or the output would
        # lose the target's distribution. Such a draft is a chain, so what is known of a node tells
        # the tokens above it.
        withheld = len(nodes) + 1
        if withheld <= min(tree.revealed, tree.last):
            raise PolicyError(
                f"token {withheld} of a draft was left out after its probability or what follows it was read: this "
                "would change the output's distribution. Decide by distribution_stats, or take the most probable "
                "tokens with proposal = 'top'"
            )


def _check_nodes(tree: TokenTree, nodes: Sequence[int]) -> None:
    """Raise PolicyError unless all nodes are in the tree, each once and after its parent."""
    checked = {0}
    for node in nodes:
        if not 0 < node < len(tree.parents):
            raise PolicyError(f"choose gave node {node} of a tree whose nodes are 1 to {tree.last}")
        parent = tree.parents[node]
        if parent not in checked:
            order = "before" if parent in nodes else "without"
            raise PolicyError(
                f"choose gave node {node} {order} its parent, node {parent}: give parents first"
            )
        if node in checked:
            raise PolicyError(f"choose gave node {node} twice")
        checked.add(node)
