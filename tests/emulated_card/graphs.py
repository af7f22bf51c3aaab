"""CUDA graphs: work that is recorded once, and replayed on the memory that it was recorded with."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from weakref import WeakSet, ref

import torch
from torch import Tensor, UntypedStorage

from emulated_card.cards import Card, MemoryBlock
from emulated_card.counts import calling_place
from emulated_card.work import poison


class Graph:
    """A graph that stands in for torch.cuda.CUDAGraph.

    A real capture computes nothing. This one has to, since results need shapes; afterwards memory from outside is put
    back, and memory of the graph's own is filled with what no result looks like.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._card: Card | None = None
        self._steps: list[Callable[[], None]] = []
        self._outside: dict[int, ref[MemoryBlock]] = {}
        """Memory from outside of the graph, which must still be there when it is replayed."""
        self._own: WeakSet[MemoryBlock] = WeakSet()
        self._before: dict[int, tuple[UntypedStorage, UntypedStorage]] = {}
        """Memory from outside that the capture has written to, with what it held before."""
        self._results: list[Tensor] = []
        self._temporary: MemoryBlock | None = None
        """Memory of results that nobody outside refers to."""
        self._at_start = self._peak_before = 0
        self.broken_by = ""
        """What happened during the capture that a card does not allow, at a moment when nothing can be raised."""

    def __del__(self) -> None:
        if self._steps and self._card is not None and self._card.capture is not None:
            self._card.capture.broken_by = (
                "a graph was freed, as the garbage collector does at any time"
            )

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Record the work of the current card from now on."""
        from emulated_card.machine import current_machine

        card = current_machine().current_card
        if card.capture is not None:
            raise RuntimeError(
                f"CUDA error: {card.device} is capturing already, at {calling_place()}"
            )
        self.reset()
        self._card, card.capture = card, self
        self._at_start, self._peak_before = card.allocated_bytes, card.peak_bytes
        card.peak_bytes = card.allocated_bytes

    def capture_end(self) -> None:
        """Stop recording."""
        card = self._require_card()
        card.capture = None
        if self.broken_by:
            raise RuntimeError(
                f"CUDA error: operation failed due to a previous error during capture: {self.broken_by}"
            )
        needed, alive = card.peak_bytes - self._at_start, card.allocated_bytes - self._at_start
        self._temporary = MemoryBlock(card, max(0, needed - alive))
        card.peak_bytes = max(card.peak_bytes, self._peak_before)
        with torch.inference_mode():
            for result in self._results:
                poison(result)
        for storage, content in self._before.values():
            storage.copy_(content)
        self._before.clear()

    def touch(self, reads: Sequence[MemoryBlock], writes: Sequence[MemoryBlock]) -> None:
        """Note which memory the next work uses."""
        for block in (*reads, *writes):
            if block not in self._own:
                self._outside[id(block)] = ref(block)
        for block in writes:
            if (
                block not in self._own
                and id(block) not in self._before
                and block.storage is not None
            ):
                self._before[id(block)] = (block.storage, block.storage.clone())

    def own(self, blocks: Sequence[MemoryBlock]) -> None:
        """Note memory that was allocated while recording."""
        self._own.update(blocks)

    def record(self, step: Callable[[], None], results: Sequence[Tensor] = ()) -> None:
        """Add work, which gives these results."""
        self._steps.append(step)
        self._results += results

    def replay(self) -> None:
        """Do all work again on the same memory; raise RuntimeError if some of that was freed."""
        card = self._require_card()
        card.note("replay")
        outside = [reference() for reference in self._outside.values()]
        alive = [block for block in outside if block is not None]
        if len(alive) < len(outside):
            raise RuntimeError(
                f"CUDA error: a graph uses memory of {card.device} that was freed, at {calling_place()}"
            )
        card.stream.use(alive, [*self._own])
        with torch.inference_mode(), torch._C.DisableTorchFunction():
            for step in self._steps:
                step()

    def reset(self) -> None:
        """Forget what was recorded, and free its memory."""
        self._steps, self._results, self._temporary, self._card = [], [], None, None
        self._outside.clear()
        self._own = WeakSet()
        self.broken_by = ""

    def pool(self) -> tuple[int, int]:
        """Return the name of the graph's memory, which other graphs may share."""
        return (0, id(self))

    def _require_card(self) -> Card:
        if self._card is None:
            raise RuntimeError(f"a graph is replayed that was never captured, at {calling_place()}")
        return self._card


class capture(AbstractContextManager[None]):
    """A context that stands in for torch.cuda.graph."""

    def __init__(
        self, graph: Graph, pool: object = None, stream: object = None, **_: object
    ) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self._graph.capture_begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._graph.capture_end()
