"""Moves of KV that wait for the next forward, and then happen on the card as one graph."""

from collections.abc import Sequence

import torch

from specbench_kit.models.executors.kv import KVStore

LEAST_MOVES = 8
"""The smallest graph; numbers of moves are rounded up to powers of two."""


class MoveInputs:
    """Slots, sources and destinations of one graph's moves, in pinned memory and on the card.

    A move that is only padding copies the last cell, which nothing attends to, onto itself.
    """

    def __init__(self, count: int, trash: int, device: torch.device) -> None:
        self._trash = trash
        self._host = torch.zeros((3, count), dtype=torch.int64, pin_memory=True)
        self._card = torch.zeros((3, count), dtype=torch.int64, device=device)
        self.was_read = torch.cuda.Event()
        """Happens when the card has read what was written last."""

    def fill(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Write moves as (slot, source, destination)."""
        if not self.was_read.query():
            self.was_read.synchronize()
        numbers = self._host.numpy()
        numbers[0], numbers[1:] = 0, self._trash
        numbers[:, : len(moves)] = list(zip(*moves, strict=True))

    def move(self, store: KVStore) -> None:
        """Bring the moves to the card and do them; in a graph this is a part of each replay."""
        self._card.copy_(self._host, non_blocking=True)
        slots, sources, destinations = self._card.unbind()
        # All sources are read before anything is written, so that a cell may be the source of one move and the
        # destination of another.
        for block in store.blocks:
            block[:, slots, :, destinations] = block[:, slots, :, sources]
