"""The hidden states that an EAGLE head reads, by slot and position."""

from collections.abc import Iterator, Sequence
from itertools import repeat

import torch
from torch import Tensor

from specbench_kit.models.executors.base import Row


class HeadStates:
    """Stores the target's states and the head's own outputs.

    A head computes a token from the target's state of the token before it or, where the target has not verified that
    far, from its own output for the token before. A slot's first row belongs to the second token of a text, as nothing
    precedes the first. A row that reads the head's own output needs that output from an earlier forward.
    """

    def __init__(self, slots: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._table = torch.zeros((slots, 2, capacity, width), dtype=dtype, device=device)
        self._flat = self._table.flatten(0, 2)
        self._capacity = capacity
        self._lengths = [0] * slots

    @property
    def bytes(self) -> int:
        """Return the memory that the states take."""
        return self._table.nbytes

    def append(self, slot: int, count: int) -> Tensor:
        """Return the memory [tokens, width] for the target's states of the next tokens of a slot's text."""
        first = self._lengths[slot]
        self._lengths[slot] = first + count
        return self._table[slot, 0, first : first + count]

    def forget(self, slot: int) -> None:
        """Drop the target's states of a slot, whose next text is a new one."""
        self._lengths[slot] = 0

    def read(self, rows: Sequence[Row]) -> Tensor:
        """Return the states [tokens, width] that the new tokens of all rows read."""
        sources = [source for row in rows for source in self._sources(row)]
        first = sources[0]
        return self._flat[first : first + 1] if len(sources) == 1 else self._flat[sources]

    def outputs(self, row: Row) -> Tensor:
        """Return the memory for the head's outputs of one row's tokens."""
        return self._table[row.slot, 1, row.start : row.start + len(row.tokens)]

    def store(self, rows: Sequence[Row], states: Tensor) -> None:
        """Store the head's outputs of all rows' tokens."""
        first = 0
        for row in rows:
            count = len(row.tokens)
            self.outputs(row)[:] = states[first : first + count]
            first += count

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        """Move the head's outputs as the executor moves its KV."""
        self._table[slot, 1, to : to + len(sources)] = self._table[slot, 1, list(sources)]

    def _sources(self, row: Row) -> Iterator[int]:
        length = self._lengths[row.slot]
        for index, path in enumerate(row.paths() or repeat(None, len(row.tokens))):
            position = row.start + index if path is None else row.prefix + len(path) - 1
            before = row.prefix + path[-2] if path is not None and len(path) > 1 else position - 1
            # The flat table holds, for each slot, the target's states and after them the head's own outputs.
            verified = position < length
            yield (2 * row.slot + (not verified)) * self._capacity + (position if verified else before)
