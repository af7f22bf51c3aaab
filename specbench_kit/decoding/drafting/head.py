"""Drafts of an EAGLE head: one layer over the target's hidden states, in the manner of EAGLE-3."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, cat

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.head_levels import HeadLevels
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.session import Session
from specbench_kit.models.draft_library import AUTO
from specbench_kit.models.executors.head import ReadsStates
from specbench_kit.models.head_library import named

if TYPE_CHECKING:
    from specbench_kit.models.runner import Runner


@drafters.register("head")
@dataclass(frozen=True)
class HeadDrafting(Drafting):
    """The head in a folder, as `skit train-head` or the `speculators` library wrote it; `auto` is the target's own.

    Nothing is drafted before the target has processed the prompt. In a pipeline, all that is in flight is forwarded
    again, level by level, when the states of further tokens are known.
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
        return HeadLevels(parts.models[name], self._executor(parts.models), parts.sampler, parts.clock)

    def _executor(self, models: "Mapping[str, Runner]") -> ReadsStates:
        executor = models[self.models[0]].executor
        assert isinstance(executor, ReadsStates)
        return executor


class HeadDrafter(ModelDrafter):
    """Drafts by forwards of a head, which is given the target's hidden states of the tokens that each round commits."""

    skips = 1  # its rows begin with the second token, as there are no states before the first

    def __init__(self, parts: DrafterParts, runner: "Runner", executor: ReadsStates) -> None:
        super().__init__(runner, parts.sampler, parts.clock, parts.sampled, parts.capacity)
        self._executor = executor
        self._early_states: defaultdict[str, list[Tensor]] = defaultdict(list)
        """Hidden states of the tokens of requests that have no slot yet: of the prompt, and of what was committed in
        rounds without a draft."""

    def room(self, draft: Draft) -> int:
        """Return how many nodes the tree can still take: none before the prompt's hidden states are known."""
        ready = draft.request_id in self._slots or draft.request_id in self._early_states
        return super().room(draft) if ready else 0

    def commit(self, draft: Draft, path: Sequence[int], root: int | None = None, states: Tensor | None = None) -> None:
        """Commit the accepted nodes and pass on the target's hidden states of them.

        The head drafted them from its own guesses of these states. Unless the tree goes on, the accepted nodes are
        therefore dropped from KV, and forwarded again with the true states.
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
        """Acquire a slot for a request's first draft, give the head all states so far, and return the slot."""
        slot = super().take_slot(draft)
        self._executor.forget(slot)
        self._executor.add_states(slot, cat(self._early_states.pop(draft.request_id)))
        return slot
