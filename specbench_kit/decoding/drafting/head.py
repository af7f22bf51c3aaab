"""Drafts of an EAGLE head: one layer over the target's hidden states, in the manner of EAGLE-3.

A head drafts round by round, or level by level for the requests of a pipeline.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor, cat

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.drafter import batched_probabilities
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.models.draft_library import AUTO, named
from specbench_kit.models.runner import Append, Runner

if TYPE_CHECKING:
    from specbench_kit.models.executors.head import ReadsStates


class HeadLevels:
    """Drafts the next level of all requests at once.

    When the target gives hidden states of further tokens, all that is in flight stood on guesses of
    them: the head then forwards it again, one level after the other, before it drafts the next.
    Before the target has processed a request's prompt there are no states, and nothing is drafted
    for it.
    """

    def __init__(
        self, runner: Runner, executor: "ReadsStates", sampler: Sampler, clock: Clock
    ) -> None:
        self.state_layers: Sequence[int] = executor.reads
        self._runner = runner
        self._executor = executor
        self._sampler = sampler
        self._clock = clock
        self._branches: dict[str, _Branch] = {}
        self._forwards: list[list[Row]] = []

    def step(self, streams: Sequence[RequestStream]) -> Mapping[int, Tensor]:
        """Return distributions, by slot, for the requests whose states are known up to the token
        before the root.
        """
        branches = [(stream, self._branches.get(stream.session.request.id)) for stream in streams]
        ready = [
            (stream, branch)
            for stream, branch in branches
            if branch is not None and branch.ready(stream)
        ]
        with self._clock.phase("draft"):
            self._forwards = []
            waiting = [(stream, branch, branch.pending(stream)) for stream, branch in ready]
            while waiting := [
                (stream, branch, levels) for stream, branch, levels in waiting if levels
            ]:
                appends = [branch.append(stream, levels[0]) for stream, branch, levels in waiting]
                cached = [
                    self._runner.length(row.slot) + self._runner.provisional(row.slot)
                    for row in appends
                ]
                self._forwards.append(
                    [(len(row.tokens), before) for row, before in zip(appends, cached, strict=True)]
                )
                logits = self._runner.forward(appends)
                for row, (stream, branch, levels) in enumerate(waiting):
                    branch.take(stream, levels.pop(0), logits[row])
            distributions = batched_probabilities(
                self._sampler, [branch.logits for _, branch in ready]
            )
        return dict(zip((stream.slot for stream, _ in ready), distributions, strict=True))

    def forwards(self) -> Sequence[Sequence[Row]]:
        """Return the forwards of the last step: for each, the rows' numbers of new tokens and of
        tokens in KV.
        """
        return self._forwards

    def add_states(self, session: Session, states: Tensor) -> None:
        """Pass the target's hidden states of a request's further tokens on to the head."""
        name = session.request.id
        if name not in self._branches:
            self._branches[name] = _Branch(self._runner)
            self._executor.forget(self._branches[name].slot)
        branch = self._branches[name]
        self._executor.add_states(branch.slot, states)
        branch.states_known += len(states)

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        branch = self._branches.pop(session.request.id, None)
        if branch is not None:
            self._runner.release(branch.slot)


class _Branch:
    """One request's slot of the head: the committed tokens from the second on, and below them what
    is in flight.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.slot = runner.acquire()
        self.states_known = 0
        """The number of committed tokens whose hidden states are known."""
        self.logits = torch.empty(0)
        """[nodes, vocabulary] after the last level."""
        self._nodes: dict[int, int] = {}
        """The slot's provisional node by the id of the node in flight; -1 for the root, which is
        committed.
        """

    def ready(self, stream: RequestStream) -> bool:
        """Return whether the root is in flight and the states of all tokens before it are known."""
        return (
            bool(stream.flight.tokens) and 0 < self.states_known == len(stream.session.tokens) - 1
        )

    def pending(self, stream: RequestStream) -> list[Sequence[int]]:
        """Return the flight's nodes that are yet to be forwarded, level by level from the root
        down.

        These are of the last level, and of the levels above it that it hangs from.
        """
        if (
            self._runner.length(self.slot) < self.states_known
        ):  # all in flight stands on less than is known now
            self._runner.commit(self.slot, ())
            self._nodes = {}
        flight = stream.flight
        levels = [list(flight.bottom)]
        while levels[-1][0] > 0:
            levels.append(sorted({flight.parents[node] for node in levels[-1]}))
        pending: list[Sequence[int]] = []
        for level in reversed(levels):
            missing = [node for node in level if flight.ids[node] not in self._nodes]
            if missing:
                pending.append(missing)
        return pending

    def append(self, stream: RequestStream, nodes: Sequence[int]) -> Append:
        """Return what is to be computed: the root with all committed tokens that are missing, or a
        level's nodes.
        """
        flight = stream.flight
        if nodes[0] == 0:
            return Append(self.slot, stream.session.tokens[1 + self._runner.length(self.slot) :])
        parents = [self._nodes[flight.ids[flight.parents[node]]] for node in nodes]
        keep = len(nodes) if nodes[-1] in flight.bottom else 1
        return Append(self.slot, [flight.tokens[node] for node in nodes], parents, keep)

    def take(self, stream: RequestStream, nodes: Sequence[int], logits: Tensor) -> None:
        """Note that the nodes were computed, with these logits."""
        self.logits, provisional = logits, self._runner.provisional(self.slot)
        if nodes[0] == 0:
            self._runner.commit(self.slot, range(provisional))
            self._nodes[stream.flight.ids[0]] = -1
        else:
            ids = (stream.flight.ids[node] for node in nodes)
            self._nodes |= dict(zip(ids, count(provisional - len(nodes)), strict=False))


@drafters.register("head")
@dataclass(frozen=True)
class HeadDrafting(Drafting):
    """The head in a folder, as `skit train-head` or the `speculators` library wrote it; `auto` is
    the target's own.

    Nothing is drafted before the target has processed the prompt. In a pipeline, all that is in
    flight is forwarded again, level by level, when the states of further tokens are known.
    """

    path: str = AUTO
    capability = Capability.LEVELS
    recordable = True
    reads_states = True

    @property
    def models(self) -> tuple[str, ...]:
        return (named(self.path),)

    def layers(self, models: "Mapping[str, Runner]") -> Sequence[int]:
        return self._executor(models).reads

    def source(self, parts: DrafterParts) -> "HeadDrafter":
        (name,) = self.models
        return HeadDrafter(parts, parts.models[name], self._executor(parts.models))

    def levels(self, parts: DrafterParts) -> HeadLevels:
        (name,) = self.models
        return HeadLevels(
            parts.models[name], self._executor(parts.models), parts.sampler, parts.clock
        )

    def _executor(self, models: "Mapping[str, Runner]") -> "ReadsStates":
        # Not above: a replay, which runs no head, is spared the imports of its executor.
        from specbench_kit.models.executors.head import ReadsStates

        executor = models[self.models[0]].executor
        if not isinstance(executor, ReadsStates):
            raise SkitError(
                f"head: '{self.path}' holds Medusa heads: draft with them by drafter=medusa.path={self.path}"
            )
        return executor


class HeadDrafter(ModelDrafter):
    """Drafts by forwards of a head, which is given the target's hidden states of the tokens that
    each round commits.
    """

    skips = 1  # its rows begin with the second token, as there are no states before the first

    def __init__(self, parts: DrafterParts, runner: "Runner", executor: "ReadsStates") -> None:
        super().__init__(runner, parts.sampler, parts.clock, parts.sampled, parts.capacity)
        self._executor = executor
        self._early_states: defaultdict[str, list[Tensor]] = defaultdict(list)
        """Hidden states of the tokens of requests that have no slot yet: of the prompt, and of what
        was committed in rounds without a draft.
        """

    def room(self, draft: Draft) -> int:
        """Return how many nodes the tree can still take: none before the prompt's hidden states are
        known.
        """
        ready = draft.request_id in self._slots or draft.request_id in self._early_states
        return super().room(draft) if ready else 0

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Return None: what it would draft depends on hidden states of the target."""
        return None

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Commit the accepted nodes and pass on the target's hidden states of them.

        The head drafted them from its own guesses of these states. Unless the tree goes on, the
        accepted nodes are therefore dropped from KV, and forwarded again with the true states.
        """
        super().commit(draft, () if root is None else path, root)
        assert states is not None
        if draft.request_id in self._slots:
            self._executor.add_states(self._slots[draft.request_id], states)
        else:
            self._early_states[draft.request_id].append(states)

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        self._early_states.pop(session.request.id, None)
        super().release(session)

    def take_slot(self, draft: Draft) -> int:
        """Acquire a slot for a request's first draft, give the head all states so far, and return
        the slot.
        """
        slot = super().take_slot(draft)
        self._executor.forget(slot)
        self._executor.add_states(slot, cat(self._early_states.pop(draft.request_id)))
        return slot
