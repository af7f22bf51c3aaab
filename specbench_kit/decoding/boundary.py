"""The one place where loops ask a policy: its time is charged to it, and what it gives is checked and named."""

from collections.abc import Iterable, Sequence
from math import isfinite

from torch import Tensor

from specbench_kit.core.errors import PolicyError, SkitError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.policy import Child, LevelPolicy, Policy
from specbench_kit.decoding.records import EXPECTED_DIGITS
from specbench_kit.decoding.rules import rule_for
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict


class CheckedPolicy:
    """A policy of the method `name`, which every error names."""

    def __init__(self, policy: Policy, name: str, clock: Clock) -> None:
        self._policy, self._name, self._clock = policy, name, clock
        kind = type(policy)
        self._overlaps, self._observes = kind.overlap is not Policy.overlap, kind.observe is not Policy.observe

    def plan(self, drafter: Drafter) -> list[list[int]]:
        """Let it draft; returns the nodes of each draft that are to be verified."""
        try:
            with self._clock.phase("policy"):
                self._policy.draft(drafter)
                chosen = self._policy.choose(drafter.drafts)
            _check_chosen(drafter.drafts, chosen)
        except PolicyError as error:
            raise _named(self._name, error) from error
        return chosen

    def overlap(self, drafter: Drafter) -> None:
        """Let it go on drafting."""
        if not self._overlaps:
            return
        try:
            with self._clock.overlap(), self._clock.phase("policy"):
                self._policy.overlap(drafter)
        except PolicyError as error:
            raise _named(self._name, error) from error

    def next_root(self, verdict: Verdict) -> int | None:
        """The node that the next round's tree begins at."""
        node = self._policy.next_root(verdict)
        if node is None:
            return None
        tree, end = verdict.draft.tree, verdict.path[-1] if verdict.path else 0
        if not 0 < node < len(tree) or tree.parents[node] != end or tree.tokens[node] != verdict.bonus:
            wrong = PolicyError(f"keep gave node {node}, which is not the target's next token after the accepted ones")
            raise _named(self._name, wrong)
        return node

    def expects(self, verdict: Verdict) -> float | None:
        """How many of the submitted tokens it reckoned with to be accepted."""
        found = self._policy.expects(verdict.draft, verdict.submitted)
        return round(found, EXPECTED_DIGITS) if found is not None and isfinite(found) else None

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Tell it what came of the round."""
        if self._observes:
            with self._clock.phase("policy"):
                self._policy.observe(verdicts)

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        self._policy.forget(request_id)


class CheckedLevels:
    """The same of a pipeline's policy."""

    def __init__(self, policy: LevelPolicy, name: str) -> None:
        self._policy, self._name = policy, name

    def next_level(self, probabilities: Tensor, scores: Sequence[float], room: int) -> list[Child]:
        """At most `room` nodes below those of the last level."""
        children = self._policy.next_level(probabilities, scores, room)
        try:
            _check_level(children, probabilities.shape, room)
        except PolicyError as error:
            raise _named(self._name, error) from error
        return children

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        self._policy.forget(request_id)


def _named(name: str, error: PolicyError) -> SkitError:
    return SkitError(f"{name}: {error}")


def _check_chosen(drafts: Sequence[Draft], chosen: Sequence[Sequence[int]]) -> None:
    if len(chosen) != len(drafts):
        raise PolicyError(f"choose gave {len(chosen)} lists of nodes for {len(drafts)} requests: give one for each")
    for draft, nodes in zip(drafts, chosen, strict=True):
        _check_nodes(draft.tree, nodes)
        if draft.tree.sampled:
            rule_for(draft.tree, nodes)
            _check_withheld(draft.tree, nodes)


def _check_withheld(tree: TokenTree, nodes: Sequence[int]) -> None:
    """A token drawn at random must not have a say in whether it is verified: its distribution would be lost.

    A draft drawn at random is a chain, so what is known of a node says what the tokens above it are.
    """
    withheld = len(nodes) + 1
    if withheld <= min(tree.known, tree.last):
        raise PolicyError(
            f"token {withheld} of a draft was left out after its probability or what follows it was read: this would "
            "change the output's distribution. Decide by its outlook, or take the likeliest tokens with proposal = "
            "'top'"
        )


def _check_nodes(tree: TokenTree, nodes: Sequence[int]) -> None:
    """All in the tree, each once, and none before its parent."""
    seen = {0}
    for node in nodes:
        if not 0 < node < len(tree.parents):
            raise PolicyError(f"choose gave node {node} of a tree whose nodes are 1 to {tree.last}")
        parent = tree.parents[node]
        if parent not in seen:
            order = "before" if parent in nodes else "without"
            raise PolicyError(f"choose gave node {node} {order} its parent, node {parent}: give parents first")
        if node in seen:
            raise PolicyError(f"choose gave node {node} twice")
        seen.add(node)


def _check_level(children: Iterable[Child], shape: Sequence[int], room: int) -> None:
    parents, vocabulary = shape
    for number, child in enumerate(children, 1):
        if number > room:
            raise PolicyError(f"next_level gave more than the {room} nodes that there is room for")
        if not 0 <= child.parent < parents:
            raise PolicyError(f"next_level gave a child of node {child.parent} of a level of {parents}")
        if not 0 <= child.token < vocabulary:
            raise PolicyError(f"next_level gave token {child.token} of a vocabulary of {vocabulary}")
