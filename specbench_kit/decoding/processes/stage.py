"""One stage of a pipeline: its slice of the target, its KV, and what it holds for the next stage."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.pipeline.stages import TreeSlot
from specbench_kit.models.executors.stage import StageExecutor
from specbench_kit.models.runner import Runner


@dataclass(slots=True)
class Load:
    """A level on its way, with the hidden states [tokens, hidden] that the last stage which worked on it gave."""

    level: Level = field(default_factory=Level)
    states: Tensor | None = None


class Stage:
    """Computes a level's slice; `held` goes to the next stage, or is the answer after the last one.

    The bookkeeping is rank 0's: a stage is told what to prune.
    """

    def __init__(
        self, model: Any, stage: int, stages: int, device: torch.device, *, slots: int, capacity: int, vocabulary: int
    ) -> None:
        self.executor = StageExecutor(model, stage, stages, device, slots, capacity, vocabulary)
        self.dtype: torch.dtype = model.dtype
        self.hidden_size: int = model.config.hidden_size
        self.runner = Runner(self.executor)
        self.held = Load()
        self.trees: dict[int, TreeSlot] = {}

    def admit(self, slot: int) -> None:
        """Begin with a new request."""
        self.trees[slot], self.held = TreeSlot(self.runner), Load()

    def release(self, slot: int) -> None:
        """Forget a request."""
        self.trees.pop(slot).release()
        self.held = Load()

    def prune(self, slot: int, prune: Prune) -> None:
        """Let go of nodes, in KV and in what is held."""
        tree, held = self.trees[slot], self.held
        first = len(tree) - len(held.level.tokens)
        kept = tree.prune(prune)
        rows = [place - first for place in kept if place >= first]
        self.held = Load()
        if rows and held.states is not None:
            states = held.states[[len(held.level.prefix) + row for row in rows]]
            self.held = Load(held.level.pick(rows, kept), states)

    def work(self, slot: int, load: Load) -> None:
        """Compute a level from its tokens, or from the hidden states of the stage before."""
        self.held = Load()
        if not load.level.tokens:
            return
        self.executor.received = None if load.states is None else load.states[None]
        keep = len(load.level.tokens) if self.executor.last else load.level.weight
        with torch.inference_mode():
            states = self.trees[slot].append(load.level, keep)
        self.held = Load(load.level, states)
