"""Slots of KV over an executor: append provisional tokens, commit one path, drop the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench_kit.errors import SkitError
from specbench_kit.models.executors.base import Executor, ForwardInput
from specbench_kit.models.kv import KVStore, KVWindow
from specbench_kit.models.masks import BAND, MaskBuilder, ancestors


@dataclass(slots=True)
class Append:
    """New tokens of one request.

    `parents[i]` is the provisional node that token i follows, counted over all of the slot's provisional
    nodes, or -1 for the committed prefix; None makes every token follow the one before. Logits are returned
    for the last `keep` tokens.
    """

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    keep: int = 1


@dataclass(slots=True)
class _Slot:
    length: int = 0
    parents: list[int] = field(default_factory=list)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))


class Logits:
    """Logits of the kept tokens of each request of a forward."""

    def __init__(self, rows: int) -> None:
        self._rows: list[Tensor | None] = [None] * rows
        self._groups: list[tuple[list[int], Tensor, list[slice]]] = []

    def add(self, members: list[int], logits: Tensor, kept: list[slice]) -> None:
        """File the logits [rows, columns, vocabulary] of one executor call."""
        self._groups.append((members, logits, kept))
        for row, (member, columns) in enumerate(zip(members, kept, strict=True)):
            self._rows[member] = logits[row, columns]

    def __getitem__(self, row: int) -> Tensor:
        """[kept tokens, vocabulary] of one request."""
        logits = self._rows[row]
        assert logits is not None
        return logits

    def argmax(self) -> list[list[int]]:
        """Most likely next token after each kept token of each request; NaN is an error."""
        best: list[list[int]] = [[] for _ in self._rows]
        for members, logits, kept in self._groups:
            values, tokens = logits.max(-1)
            refuse_nan(values)
            table = tokens.tolist()
            for row, (member, columns) in enumerate(zip(members, kept, strict=True)):
                best[member] = table[row][columns]
        return best


def refuse_nan(values: Tensor) -> None:
    """End the run with one clear line where a model's output is not a number."""
    if values.isnan().any():
        raise SkitError("the model returned NaN logits: check its weights, or try --dtype float32")


class Runner:
    """One model's KV slots; prefill, chains and trees all go through `forward` and `commit`.

    A slot holds at most `capacity` tokens, provisional ones included. Logits are cut to the first `vocabulary`
    entries, since models that share a tokenizer may pad their output differently.
    """

    def __init__(
        self,
        executor: Executor,
        slots: int,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
        vocabulary: int | None = None,
    ) -> None:
        self.executor = executor
        self.vocabulary = vocabulary
        self.capacity = capacity
        self.device = device
        # Rows of a batch are padded by less than BAND tokens; their padding needs room behind the last slot.
        self.store = KVStore(executor.kv_shape, slots, capacity + BAND, dtype, device)
        self.masks = MaskBuilder(capacity + BAND, dtype, device)
        self._positions = torch.arange(capacity + BAND, device=device)
        self._slots = [_Slot() for _ in range(slots)]
        self._free = list(range(slots))[::-1]

    def acquire(self) -> int:
        """An empty slot."""
        slot = self._free.pop()
        self._slots[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)
        self._free.sort(reverse=True)

    def length(self, slot: int) -> int:
        """Committed tokens whose KV the slot holds."""
        return self._slots[slot].length

    def provisional(self, slot: int) -> int:
        """Appended tokens that are not yet committed."""
        return len(self._slots[slot].parents)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Append]) -> Logits:
        """Append every row's tokens as provisional and return the logits of those it keeps."""
        logits = Logits(len(rows))
        for members in _groups(rows):
            self._forward_group([rows[m] for m in members], members, logits)
        return logits

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the provisional nodes `path` (from the prefix down), drop all others."""
        state = self._slots[slot]
        moved = next((i for i, node in enumerate(path) if i != node), len(path))
        if moved < len(path):
            self.store.move(slot, [state.length + node for node in path[moved:]], state.length + moved)
        state.length += len(path)
        state.parents.clear()

    def top2(self, prefix: Sequence[int]) -> tuple[tuple[int, int], float]:
        """The two most likely tokens after a prefix and the margin between their logits; leaves no trace."""
        slot = self.acquire()
        try:
            values, tokens = self.forward([Append(slot, prefix)])[0][0].float().topk(2)
        finally:
            self.release(slot)
        best, second = tokens.tolist()
        return (best, second), float(values[0] - values[1])

    def _forward_group(self, rows: list[Append], members: list[int], logits: Logits) -> None:
        states = [self._slots[row.slot] for row in rows]
        starts = [state.length + len(state.parents) for state in states]
        for row, state in zip(rows, states, strict=True):
            self._append(row, state)
        width = max(len(row.tokens) for row in rows)
        first = min(len(row.tokens) - row.keep for row in rows)
        window = KVWindow(self.store, [row.slot for row in rows], starts, width, max(starts) + width)
        batch = self._chain(rows[0], starts[0], window, first) if _is_chain(states) else None
        batch = batch or self._general(rows, states, starts, window, first)
        out = self.executor.forward(batch)
        kept = [slice(len(row.tokens) - row.keep - first, len(row.tokens) - first) for row in rows]
        logits.add(members, out[..., : self.vocabulary], kept)

    def _append(self, row: Append, state: _Slot) -> None:
        before = len(state.parents)
        state.parents.extend(row.parents or range(before - 1, before - 1 + len(row.tokens)))
        if state.length + len(state.parents) > self.capacity:
            raise SkitError(f"a request outgrew its KV slot of {self.capacity} tokens")

    def _chain(self, row: Append, start: int, window: KVWindow, first: int) -> ForwardInput:
        """One request whose new tokens follow each other: mask and positions are views of tables."""
        width = len(row.tokens)
        positions = self._positions[None, start : start + width]
        keys = self._positions[None, : window.length] if self.executor.needs_key_positions else None
        mask = self.masks.chain(start, width)
        return ForwardInput(torch.tensor([row.tokens], device=self.device), positions, mask, window, first, keys)

    def _general(
        self, rows: list[Append], states: list[_Slot], starts: list[int], window: KVWindow, first: int
    ) -> ForwardInput:
        """Requests of different length, or trees."""
        width, length = window.width, window.length
        tokens = torch.tensor([[*row.tokens, *[0] * (width - len(row.tokens))] for row in rows])
        allowed = self.masks.ragged(starts, width, length)
        keys = self._positions[:length].repeat(len(rows), 1)
        for index, (row, state) in enumerate(zip(rows, states, strict=True)):
            if not state.is_chain:
                self._mark_tree(allowed[index], keys[index], state, starts[index], len(row.tokens))
        ends = torch.tensor(starts, device=self.device)[:, None] + self._positions[:width]
        positions = keys.gather(1, ends.clamp(max=length - 1))
        mask = self.masks.additive(allowed)[:, None]
        wanted = keys if self.executor.needs_key_positions else None
        return ForwardInput(tokens.to(self.device), positions, mask, window, first, wanted)

    def _mark_tree(self, allowed: Tensor, keys: Tensor, state: _Slot, start: int, count: int) -> None:
        """Let the new nodes see only their own path among the provisional nodes, at the depth of each."""
        paths = ancestors(state.parents)
        allowed[:count, state.length :] = False
        for column, path in enumerate(paths[start - state.length :]):
            allowed[column, [state.length + node for node in path]] = True
        depths = torch.tensor([state.length + len(path) - 1 for path in paths], device=self.device)
        keys[state.length : state.length + len(paths)] = depths


def _is_chain(states: list[_Slot]) -> bool:
    return len(states) == 1 and states[0].is_chain


def _groups(rows: Sequence[Append]) -> list[list[int]]:
    """Rows that share an executor call: all short ones together, each long one (a prefill) alone."""
    short = [i for i, row in enumerate(rows) if len(row.tokens) < BAND]
    return [*([short] if short else []), *([i] for i, row in enumerate(rows) if len(row.tokens) >= BAND)]
