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
    """A level on its way, with the hidden states [tokens, hidden] that the last stage which worked on it gave.

    `seen` [tokens, layers x hidden] are those that a drafter reads, of the layers that it has gone through.
    """

    level: Level = field(default_factory=Level)
    states: Tensor | None = None
    seen: Tensor | None = None


class Stage:
    """Computes a slice of levels; what is `held`, by slot, goes to the next stage, or is the last one's answer.

    The bookkeeping is rank 0's: a stage is told what to prune.
    """

    def __init__(
        self, model: Any, stage: int, stages: int, device: torch.device, *, slots: int, capacity: int, vocabulary: int
    ) -> None:
        self.executor = StageExecutor(model, stage, stages, device, slots, capacity, vocabulary)
        self.dtype: torch.dtype = model.dtype
        self.hidden_size: int = model.config.hidden_size
        self.runner = Runner(self.executor)
        self.held: dict[int, CarriedLevel] = {}
        self.trees: dict[int, TreeSlot] = {}

    def admit(self, slot: int) -> None:
        """Begin with a new request."""
        self.trees[slot] = TreeSlot(self.runner)

    def release(self, slot: int) -> None:
        """Forget a request."""
        self.trees.pop(slot).release()
        self.held.pop(slot, None)

    def prune(self, slot: int, prune: Prune) -> None:
        """Let go of nodes, in KV and in what is held."""
        tree, held = self.trees[slot], self.held.get(slot, CarriedLevel())
        first = len(tree) - len(held.level.tokens)
        kept = tree.prune(prune)
        rows = [place - first for place in kept if place >= first]
        if rows and held.states is not None:
            staying = [len(held.level.prefix) + row for row in rows]
            seen = None if held.seen is None else held.seen[staying]
            # In its place: answers go out in this order.
            self.held[slot] = CarriedLevel(held.level.pick(rows, kept), held.states[staying], seen)
        else:
            self.held.pop(slot, None)

    def work(self, loads: Mapping[int, CarriedLevel], layers: Sequence[int] = ()) -> None:
        """Compute the levels of all slots as one batch, from tokens or the hidden states of the stage before.

        Of the `layers` that a drafter reads, those of this stage's join what the levels carry.
        """
        self.held = {}
        if not loads:
            return
        trees = [self.trees[slot] for slot in loads]
        rows = [
            tree.append(load.level, whole=bool(layers) or not self.executor.last)
            for tree, load in zip(trees, loads.values(), strict=True)
        ]
        self.executor.received = {
            tree.index: load.states for tree, load in zip(trees, loads.values(), strict=True) if load.states is not None
        }
        own = [layer for layer in layers if layer in self.executor.layers]
        found = self.runner.forward(rows, own)
        self.held = {
            slot: CarriedLevel(load.level, found[row], _beside(load.seen, found.states(row, own) if own else None))
            for row, (slot, load) in enumerate(loads.items())
        }


def _beside(before: Tensor | None, new: Tensor | None) -> Tensor | None:
    if before is None or new is None:
        return new if before is None else before
    return torch.cat((before, new), dim=-1)
