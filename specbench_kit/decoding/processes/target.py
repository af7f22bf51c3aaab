"""A pipeline as verification by rounds sees it: a batch passes through all stages before the next one begins."""

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
    nodes: int = 0
    prune: Prune | None = None


class PipelineTarget:
    """Does for a pipeline what a runner does for a model.

    A forward's first tokens, whose logits are not asked for, must follow each other.
    """

    asynchronous = True

    def __init__(self, stages: "ProcessStages") -> None:
        self._stages = stages
        self._slots: dict[int, _Slot] = {}

    def acquire(self) -> int:
        """An empty slot."""
        slot = self._stages.acquire()
        self._slots[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        del self._slots[slot]
        self._stages.release(slot)

    def length(self, slot: int) -> int:
        """Committed tokens."""
        return self._slots[slot].length

    def provisional(self, slot: int) -> int:
        """Appended tokens that are not yet committed."""
        return self._slots[slot].prefix + self._slots[slot].nodes

    def begin(self, rows: Sequence[Append], layers: Sequence[int] = ()) -> Callable[[], Forward]:
        """One pass of all rows, which is still on its way when this returns."""
        wanted, kept = sorted(set(layers)), [len(row.tokens) if layers else row.keep for row in rows]
        feeds = [Feed(row.slot, self._level(row), self._slots[row.slot].prune) for row in rows]
        self._stages.pass_through(feeds, wanted)

        def ends(found: Tensor) -> list[Tensor]:
            return [part[-row.keep :] for part, row in zip(found.split(kept), rows, strict=True)]

        def answer() -> Forward:
            logits, states = self._stages.split(self._stages.answers(sum(kept), wanted), wanted)
            return Forward(ends(logits), {layer: ends(found) for layer, found in states.items()})

        return answer

    def commit(self, slot: int, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the provisional nodes `path` part of the prefix and drop the others, with the next pass."""
        state = self._slots[slot]
        state.prune = Prune([node - state.prefix for node in path if node >= state.prefix], [])
        state.length, state.prefix, state.nodes = state.length + len(path), 0, 0

    def _level(self, row: Append) -> Level:
        state = self._slots[row.slot]
        state.prefix, state.nodes = len(row.tokens) - row.keep, row.keep
        parents = row.parents or range(-1, len(row.tokens) - 1)
        places = [max(-1, parent - state.prefix) for parent in parents[state.prefix :]]
        nodes = list(row.tokens[state.prefix :])
        return Level(list(range(len(nodes))), nodes, places, row.tokens[: state.prefix])
