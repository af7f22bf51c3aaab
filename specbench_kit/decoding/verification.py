"""The target model's side of a round: one forward over the chosen nodes, then one of three rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from torch import Tensor

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.rules import rule_for, walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Append, refuse_nan, refuse_nan_in


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one request's round: `path` are the accepted nodes, `extra` the target's own next token."""

    draft: Draft
    submitted: list[int]
    path: list[int]
    bonus: int
    weight: int
    """Tokens that the target computed for this request, its share of the batch."""
    states: Tensor | None = None
    """What it made, in the layers that the drafter reads, of the committed tokens that are new to it: [tokens, layers x
    width], those up to the root and then the accepted ones."""
    padded: Sequence[int] = ()
    """The `Padding` of its row in a batch of several."""

    @property
    def tokens(self) -> list[int]:
        """What the round adds to the output, before any end is applied."""
        tokens = self.draft.tree.tokens
        return [tokens[node] for node in self.path] + [self.bonus]

    def places(self) -> tuple[list[int], list[int]]:
        """Parents of the submitted nodes and the path, as `RoundRecord` has them."""
        above = self.draft.tree.parents
        parents = [above[node] for node in self.submitted]
        if parents == [0, *self.submitted][:-1]:
            return [], []
        place = {0: 0} | {node: number for number, node in enumerate(self.submitted, start=1)}
        return [place[node] for node in parents], [place[node] for node in self.path]


PendingVerdicts = Callable[[], list[Verdict]]
"""Waits for the verdicts of what was sent."""


class Verifier(Protocol):
    """What the loop asks of whatever verifies: a model, or a recorded trace."""

    asynchronous: bool
    """Whether it works beside this process, so that its answer may have to be waited for."""

    def admit(self, session: Session) -> None:
        """Make room for a new request."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Have the chosen nodes of every draft judged."""

    def commit(self, verdict: Verdict) -> None:
        """Take note of the accepted nodes."""

    def release(self, session: Session) -> None:
        """Forget a finished request."""


class RemoteVerifier(Verifier, Protocol):
    """One behind a wire."""

    def answer_arrived(self) -> bool:
        """Whether an answer has arrived."""


class Target(Protocol):
    """What verification asks of the target: a runner's slots and forwards, wherever the model is."""

    asynchronous: bool
    """Whether the model is in another process."""

    def acquire(self) -> int:
        """An empty slot."""

    def release(self, slot: int) -> None:
        """Give a slot back."""

    def length(self, slot: int) -> int:
        """Committed tokens whose KV the slot holds."""

    def provisional(self, slot: int) -> int:
        """Appended tokens that are not yet committed."""

    def begin(self, rows: Sequence[Append], layers: Sequence[int] = ()) -> Callable[[], Forward]:
        """Append every row's tokens as provisional; what is returned waits for what it gives for those it keeps."""

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Make a path of provisional nodes part of the prefix and drop the others."""


class ModelVerifier:
    """Target forwards over the requests of a batch; `layers` are those whose states the drafter reads."""

    def __init__(self, runner: Target, sampler: Sampler, layers: Sequence[int] = ()) -> None:
        self._runner, self._sampler, self._layers = runner, sampler, layers
        self.asynchronous = runner.asynchronous
        self._slots: dict[str, int] = {}

    def admit(self, session: Session) -> None:
        """Take a slot."""
        self._slots[session.request.id] = self._runner.acquire()

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        self._runner.release(self._slots.pop(session.request.id))

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """One batched target forward, then the rule that fits how the tokens were drafted."""
        rows = [self._append(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]
        logits = self._runner.begin(rows, self._layers)
        if self.asynchronous:
            return lambda: self._verdicts(drafts, chosen, rows, logits())
        verdicts = self._verdicts(drafts, chosen, rows, logits())
        return lambda: verdicts

    def commit(self, verdict: Verdict) -> None:
        """Keep the KV of the root and of the accepted nodes."""
        slot = self._slots[verdict.draft.request_id]
        root = self._runner.provisional(slot) - len(verdict.submitted) - 1
        place = dict(zip(verdict.submitted, count(root + 1), strict=False))
        self._runner.commit(slot, [*range(root + 1), *map(place.__getitem__, verdict.path)])

    def _append(self, draft: Draft, nodes: list[int]) -> Append:
        slot = self._slots[draft.request_id]
        pending, tree = draft.session.tokens[self._runner.length(slot) :], draft.tree
        place = dict(zip((0, *nodes), count(len(pending) - 1), strict=False))
        parents = [*range(-1, len(pending) - 1), *[place[tree.parents[node]] for node in nodes]]
        keep = (len(pending) if self._layers else 1) + len(nodes)
        return Append(slot, pending + [tree.tokens[node] for node in nodes], parents, keep)

    def _verdicts(
        self, drafts: Sequence[Draft], chosen: Sequence[list[int]], rows: Sequence[Append], logits: Forward
    ) -> list[Verdict]:
        outcomes = self._judge(drafts, chosen, logits)
        verdicts = [
            Verdict(draft, nodes, path, extra, len(row.tokens), padded=padded)
            for draft, nodes, row, (path, extra), padded in zip(
                drafts, chosen, rows, outcomes, _padding(logits, len(rows)), strict=True
            )
        ]
        if not self._layers:
            return verdicts
        return [
            replace(verdict, states=_of_path(verdict, logits.states(row, self._layers)))
            for row, verdict in enumerate(verdicts)
        ]

    def _judge(
        self, drafts: Sequence[Draft], chosen: Sequence[list[int]], logits: Forward
    ) -> list[tuple[list[int], int]]:
        if self._sampler.greedy:
            refuse_nan(logits)
            best = logits.argmax()
            return [
                walk(draft.tree, nodes, row[-1 - len(nodes) :].__getitem__)
                for draft, nodes, row in zip(drafts, chosen, best, strict=True)
            ]
        outcomes = []
        for row, (draft, nodes) in enumerate(zip(drafts, chosen, strict=True)):
            target = self._sampler.probabilities(logits[row][-1 - len(nodes) :])
            refuse_nan_in(target)
            rule = rule_for(draft.tree, nodes)
            outcomes.append(rule(draft.tree, nodes, target, draft.session.random.at(draft.session.produced)))
        return outcomes


def _padding(found: Forward, rows: int) -> list[Sequence[int]]:
    """Of every row; nothing where it was computed alone."""
    return [one if one.rows > 1 else () for one in found.padding] or [()] * rows


def _of_path(verdict: Verdict, states: Tensor) -> Tensor:
    """Of the states of a row those of the tokens that were committed."""
    root = len(states) - len(verdict.submitted) - 1
    place = {node: root + 1 + i for i, node in enumerate(verdict.submitted)}
    return states[[*range(root + 1), *(place[node] for node in verdict.path)]]
