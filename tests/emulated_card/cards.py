"""The memory of a card: blocks that tensors share, bytes allocated, their peak, and a limit."""

from threading import local
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor, UntypedStorage

from emulated_card.counts import Counts, Kind, calling_place
from emulated_card.streams import Stream

if TYPE_CHECKING:
    from emulated_card.graphs import Graph

GRAIN = 512
"""Memory is handed out in multiples of this many bytes, as torch's allocator does."""
MIB = 2**20


class MemoryBlock:
    """Memory on a card, in use for as long as a tensor or a graph refers to it."""

    __slots__ = ("__weakref__", "card", "readers", "size", "storage", "writer")

    def __init__(self, card: "Card", size: int, storage: UntypedStorage | None = None) -> None:
        self.card, self.size, self.storage = card, 0, storage
        self.writer: tuple[Stream, int] | None = None
        """The stream that wrote it last, and how far that stream was."""
        self.readers: dict[Stream, int] = {}
        """How far each stream was when it read this memory last, since it was written."""
        card.take(size)
        self.size = size

    def __del__(self) -> None:
        self.card.allocated_bytes -= self.size


class Card:
    """One emulated card with `limit_bytes` of memory."""

    def __init__(self, index: int, limit_bytes: int, counts: Counts) -> None:
        self.index, self.limit_bytes, self.counts = index, limit_bytes, counts
        self.device = torch.device("cuda", index)
        self.allocated_bytes = self.peak_bytes = 0
        self.capture: Graph | None = None
        """The graph that records work in place of launching it."""
        self.default_stream = Stream(self)
        self.streams = [self.default_stream]
        self._of_thread = local()
        self._blocks: WeakValueDictionary[int, MemoryBlock] = WeakValueDictionary()

    @property
    def stream(self) -> Stream:
        """The stream to which this thread gives work."""
        return getattr(self._of_thread, "stream", self.default_stream)

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._of_thread.stream = stream

    def take(self, size: int) -> None:
        """Allocate bytes; raise torch.OutOfMemoryError if there is no room."""
        free = self.limit_bytes - self.allocated_bytes
        if size > free:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU {self.index} has a total capacity "
                f"of {self.limit_bytes / MIB:.2f} MiB of which {free / MIB:.2f} MiB is free."
            )
        self.allocated_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def block_of(self, held: Tensor) -> MemoryBlock:
        """Return the block of the memory that a tensor's numbers are in, or a new one."""
        storage = held.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            size = -(-storage.nbytes() // GRAIN) * GRAIN
            block = self._blocks[storage._cdata] = MemoryBlock(self, size, storage)
        return block

    def note(self, kind: Kind) -> None:
        """Count an event; raise RuntimeError if a graph is being captured, which may only record launches."""
        if self.capture is None:
            self.counts.add(kind)
        elif kind != "launch":
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing: {kind} at {calling_place()}"
            )

    def wait(self) -> None:
        """Let the host wait until a result has arrived, and all before it on the current stream."""
        self.note("wait")
        self.stream.deliver(self.stream.position)

    def synchronize(self) -> None:
        """Let the host wait for everything that the card does."""
        self.note("synchronise")
        for stream in self.streams:
            stream.deliver(stream.position)
