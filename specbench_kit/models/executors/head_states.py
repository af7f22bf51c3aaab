"""The states that a feature head reads, by slot and place."""

from collections.abc import Iterator, Sequence
from itertools import repeat

import torch
from torch import Tensor

from specbench_kit.models.executors.base import Row


class HeadStates:
    """A token's row reads what the target made of the token before it, where that was told, else the row before it.

    A slot's first row is for the second token of a text, as there is nothing before the first. Rows whose states were
    not told need the row before them to be there already, from an earlier forward.
    """

    def __init__(self, slots: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._table = torch.zeros((slots, 2, capacity, width), dtype=dtype, device=device)
        self._flat = self._table.flatten(0, 2)
        self._capacity, self._told = capacity, [0] * slots

    @property
    def bytes(self) -> int:
        """Memory that they take."""
        return self._table.nbytes

    def tell(self, slot: int, states: Tensor) -> None:
        """What the target made of further tokens of a slot's text, [tokens, width], in the order of the text."""
        first = self._told[slot]
        self._table[slot, 0, first : first + len(states)] = states
        self._told[slot] = first + len(states)

    def forget(self, slot: int) -> None:
        """A slot's next text is another one."""
        self._told[slot] = 0

    def read(self, rows: Sequence[Row]) -> Tensor:
        """What new tokens read, [tokens, width], row after row."""
        sources = [source for row in rows for source in self._sources(row)]
        first = sources[0]
        return self._flat[first : first + 1] if len(sources) == 1 else self._flat[sources]

    def place(self, row: Row) -> Tensor:
        """Where it is kept what becomes of one row's tokens."""
        return self._table[row.slot, 1, row.start : row.start + len(row.tokens)]

    def keep(self, rows: Sequence[Row], states: Tensor) -> None:
        """What became of them."""
        first = 0
        for row in rows:
            count = len(row.tokens)
            self.place(row)[:] = states[first : first + count]
            first += count

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        """As the executor moves its KV."""
        self._table[slot, 1, to : to + len(sources)] = self._table[slot, 1, list(sources)]

    def _sources(self, row: Row) -> Iterator[int]:
        told = self._told[row.slot]
        for index, path in enumerate(row.paths() or repeat(None, len(row.tokens))):
            position = row.start + index if path is None else row.prefix + len(path) - 1
            before = row.prefix + path[-2] if path is not None and len(path) > 1 else position - 1
            known = position < told
            yield (2 * row.slot + (not known)) * self._capacity + (position if known else before)
