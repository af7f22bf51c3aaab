"""One stage of a pipeline: its slice of the target, its KV, and what it holds for the next stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.pipeline.stages import TreeSlot
from specbench_kit.models.executors.stage import StageExecutor
from specbench_kit.models.runner import Runner


@dataclass(slots=True)
class CarriedLevel:
    """A level on its way, with the hidden states [tokens, hidden] that the last stage to work on it computed.

    `drafter_states` [tokens, layers x hidden] are those that a drafter reads, of the layers passed so far.
    """

    level: Level = field(default_factory=Level)
    states: Tensor | None = None
    drafter_states: Tensor | None = None


class Stage:
    """Computes a slice of the target for levels; rank 0 keeps the books and tells the stage what to prune."""

    def __init__(
        self, model: Any, stage: int, stages: int, device: torch.device, *, slots: int, capacity: int, vocabulary: int
    ) -> None:
        self.executor = StageExecutor(model, stage, stages, device, slots, capacity, vocabulary)
        self.dtype: torch.dtype = model.dtype
        self.hidden_size: int = model.config.hidden_size
        self.runner = Runner(self.executor)
        self.output: dict[int, CarriedLevel] = {}
        """By slot, what goes to the next stage with the next step, or is the last stage's answer."""
        self.trees: dict[int, TreeSlot] = {}

    def admit(self, slot: int) -> None:
        """Begin with a new request."""
        self.trees[slot] = TreeSlot(self.runner)

    def release(self, slot: int) -> None:
        """Free a finished request's slot."""
        self.trees.pop(slot).release()
        self.output.pop(slot, None)

    def prune(self, slot: int, prune: Prune) -> None:
        """Drop nodes from KV and from the stage's output."""
        tree, carried = self.trees[slot], self.output.get(slot, CarriedLevel())
        # The stage has computed the flight's first nodes, and the newest of them are those of its output.
        first = len(tree) - len(carried.level.tokens)
        computed = tree.prune(prune)
        rows = [node - first for node in computed if node >= first]
        if rows and carried.states is not None:
            staying = [len(carried.level.prefix) + row for row in rows]
            drafter_states = None if carried.drafter_states is None else carried.drafter_states[staying]
            # The slot keeps its position in the dictionary, since answers go out in this order.
            self.output[slot] = CarriedLevel(
                carried.level.pick(rows, computed), carried.states[staying], drafter_states
            )
        else:
            self.output.pop(slot, None)

    def work(self, levels: Mapping[int, CarriedLevel], layers: Sequence[int] = ()) -> None:
        """Compute the levels of all slots as one batch, from tokens or the hidden states of the stage before.

        Of the `layers` that a drafter reads, those of this stage's join what the levels carry.
        """
        self.output = {}
        if not levels:
            return
        pairs = [(self.trees[slot], carried) for slot, carried in levels.items()]
        all_tokens = bool(layers) or not self.executor.last
        rows = [tree.append(carried.level, whole=all_tokens) for tree, carried in pairs]
        self.executor.received = {tree.index: carried.states for tree, carried in pairs if carried.states is not None}
        own = [layer for layer in layers if layer in self.executor.layers]
        forward = self.runner.forward(rows, own)
        for row, (slot, carried) in enumerate(levels.items()):
            parts = [carried.drafter_states, forward.states(row, own) if own else None]
            states = [part for part in parts if part is not None]
            self.output[slot] = CarriedLevel(carried.level, forward[row], torch.cat(states, dim=-1) if states else None)
