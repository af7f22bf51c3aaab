"""A pipeline as verification by rounds uses it: a batch passes through all stages before the next one begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.pipeline.stages import Feed
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Append

if TYPE_CHECKING:
    from specbench_kit.decoding.processes.stages import ProcessStages


@dataclass(slots=True)
class _Slot:
    length: int = 0
    prefix: int = 0
    """Provisional tokens at the beginning, which the stages have joined to their prefix already."""
    nodes: int = 0
    prune: Prune | None = None
    """What the last commit decided; the stages hear of it with the next pass."""


class PipelineTarget:
    """Does for a pipeline what a runner does for a model.

    A forward's first tokens, whose logits are not requested, must form a chain.
    """

    asynchronous = True
    takes_pending = False

    def __init__(self, stages: "ProcessStages") -> None:
        self._stages = stages
        self._slots: dict[int, _Slot] = {}

    def acquire(self) -> int:
        """Return an empty slot."""
        slot = self._stages.acquire()
        self._slots[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """Free a slot."""
        del self._slots[slot]
        self._stages.release(slot)

    def length(self, slot: int) -> int:
        """Return the number of committed tokens."""
        return self._slots[slot].length

    def provisional(self, slot: int) -> int:
        """Return the number of appended tokens that are not yet committed."""
        return self._slots[slot].prefix + self._slots[slot].nodes

    def begin(self, rows: Sequence[Append], layers: Sequence[int] = ()) -> Callable[[], Forward]:
        """Start one pass of all rows; the function returned waits for its result."""
        layers = sorted(set(layers))
        counts = [len(row.tokens) if layers else row.keep for row in rows]
        feeds = []
        for row in rows:
            slot = self._slots[row.slot]
            slot.prefix, slot.nodes = len(row.tokens) - row.keep, row.keep
            parents = row.parents or range(-1, len(row.tokens) - 1)
            parents = [max(-1, parent - slot.prefix) for parent in parents[slot.prefix :]]
            nodes = list(row.tokens[slot.prefix :])
            level = Level(list(range(len(nodes))), nodes, parents, row.tokens[: slot.prefix])
            feeds.append(Feed(row.slot, level, slot.prune))
        self._stages.pass_through(feeds, layers)

        def requested(output: Tensor) -> list[Tensor]:
            return [part[-row.keep :] for part, row in zip(output.split(counts), rows, strict=True)]

        def answer() -> Forward:
            logits, states = self._stages.split(self._stages.receive_output(sum(counts), layers), layers)
            return Forward(requested(logits), {layer: requested(hidden) for layer, hidden in states.items()})

        return answer

    def commit(self, slot: int, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the provisional nodes `path` part of the prefix, and drop the others, with the next pass."""
        state = self._slots[slot]
        state.prune = Prune([node - state.prefix for node in path if node >= state.prefix], [])
        state.length, state.prefix, state.nodes = state.length + len(path), 0, 0
