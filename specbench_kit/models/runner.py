"""Slots of KV over an executor: append provisional tokens, commit one path, drop the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import isnan

import numpy as np
import torch
from torch import Tensor

from specbench_kit.errors import SkitError
from specbench_kit.models.executors.base import Executor, ForwardInput
from specbench_kit.models.kv import KVStore, KVWindow
from specbench_kit.models.masks import BAND, MaskBuilder


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
    is_chain: bool = True
    _paths: list[list[int]] = field(default_factory=list)

    def append(self, row: Append) -> None:
        before = len(self.parents)
        chain = list(range(before - 1, before - 1 + len(row.tokens)))
        parents = list(row.parents or chain)
        self.parents += parents
        self.is_chain = self.is_chain and parents == chain

    def paths(self) -> list[list[int]]:
        """For each provisional node its path from the committed prefix, itself included."""
        for node in range(len(self._paths), len(self.parents)):
            parent = self.parents[node]
            self._paths.append([*(self._paths[parent] if parent >= 0 else ()), node])
        return self._paths

    def clear(self) -> None:
        self.parents.clear()
        self._paths.clear()
        self.is_chain = True


class Logits:
    """Logits of the kept tokens of each request of a forward."""

    def __init__(self, rows: int) -> None:
        self._rows: list[Tensor | None] = [None] * rows

    def add(self, members: list[int], logits: Tensor, kept: list[slice]) -> None:
        """File the logits [rows, columns, vocabulary] of one executor call."""
        for row, (member, columns) in enumerate(zip(members, kept, strict=True)):
            self._rows[member] = logits[row, columns]

    def __getitem__(self, row: int) -> Tensor:
        """[kept tokens, vocabulary] of one request."""
        logits = self._rows[row]
        assert logits is not None
        return logits

    @cached_property
    def table(self) -> Tensor:
        """[kept tokens, vocabulary] of all requests, one after the other."""
        return self[0] if len(self._rows) == 1 else torch.cat([self[row] for row in range(len(self._rows))])

    def argmax(self) -> list[list[int]]:
        """Most likely next token after each kept token of each request."""
        best = iter(self.table.argmax(-1).tolist())
        return [list(islice(best, len(self[row]))) for row in range(len(self._rows))]


def refuse_nan(values: Tensor) -> None:
    """End the run with one clear line where a model's output is not a number (or infinite of either sign)."""
    if isnan(values.sum().item()):
        raise SkitError("the model returned NaN logits: check its weights, or try --dtype float32")


class Runner:
    """One model's KV slots; prefill, chains and trees all go through `forward` and `commit`.

    A slot holds at most `capacity` tokens, provisional ones included. Logits are cut to the first `vocabulary`
    entries, since models that share a tokenizer may pad their output differently.
    """

    apart = False

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
        self.masked: Sequence[int] = ()
        """Tokens that the model may read but not say."""
        self.capacity = capacity
        self.device = device
        # Rows of a batch are padded by less than BAND tokens; their padding needs room behind the last slot.
        self.store = KVStore(executor.kv_shape, slots, capacity + BAND, dtype, device)
        self.masks = MaskBuilder(capacity + BAND, dtype, device)
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

    def begin(self, rows: Sequence[Append]) -> Callable[[], Logits]:
        """As `forward`, for whoever might have to wait for another process."""
        logits = self.forward(rows)
        return lambda: logits

    def forward(self, rows: Sequence[Append]) -> Logits:
        """Append every row's tokens as provisional and return the logits of those it keeps."""
        if not torch.is_inference_mode_enabled():  # entering it takes time, so a loop does so once for many forwards
            with torch.inference_mode():
                return self.forward(rows)
        logits = Logits(len(rows))
        for members in _groups(rows):
            self._forward_group([rows[m] for m in members], members, logits)
        return logits

    def commit(self, slot: int, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the provisional nodes `path` (from the prefix down) part of the prefix and drop the others.

        The nodes `keep`, which hang together below the path's end, stay provisional and are numbered from 0 on.
        """
        state, nodes = self._slots[slot], [*path, *keep]
        moved = next((i for i, node in enumerate(nodes) if i != node), len(nodes))
        if moved < len(nodes):
            self.store.move(slot, [state.length + node for node in nodes[moved:]], state.length + moved)
        state.length += len(path)
        place = {node: i for i, node in enumerate(keep)}
        parents = [place.get(state.parents[node], -1) for node in keep]
        state.clear()
        if parents:
            state.append(Append(slot, [0] * len(parents), parents))

    def _forward_group(self, rows: list[Append], members: list[int], logits: Logits) -> None:
        starts = [self._grow(row) for row in rows]
        widths = [len(row.tokens) for row in rows]
        first = min(width - row.keep for width, row in zip(widths, rows, strict=True))
        window = KVWindow(self.store, [row.slot for row in rows], starts, max(widths))
        out = self.executor.forward(self._batch(rows, starts, window, first))
        kept = [slice(width - row.keep - first, width - first) for width, row in zip(widths, rows, strict=True)]
        logits.add(members, self._masked(out[..., : self.vocabulary]), kept)

    def _masked(self, out: Tensor) -> Tensor:
        """Masked tokens become as unlikely as the least likely one: minus infinity would spoil draft statistics."""
        places = [token for token in self.masked if token < out.shape[-1]]
        if places:
            out[..., places] = out.amin(-1, keepdim=True)
        return out

    def _grow(self, row: Append) -> int:
        """Append to a slot; returns where the new tokens start."""
        state = self._slots[row.slot]
        start = state.length + len(state.parents)
        if start + len(row.tokens) > self.capacity:
            raise SkitError(f"a request outgrew its KV slot of {self.capacity} tokens")
        state.append(row)
        return start

    def _batch(self, rows: list[Append], starts: list[int], window: KVWindow, first: int) -> ForwardInput:
        """Pad to one width; every row is laid out as a chain, then the trees are corrected."""
        inputs = np.zeros((2, len(rows), window.width), np.int64)
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            inputs[0, index, : len(row.tokens)] = row.tokens
            inputs[1, index, : len(row.tokens)] = range(start, start + len(row.tokens))
        mask = self.masks.chains(starts, window.width, window.length)
        keys = None
        if self.executor.needs_key_positions:
            keys = torch.arange(window.length, device=self.device).repeat(len(rows), 1)
        trees = [index for index, row in enumerate(rows) if not self._slots[row.slot].is_chain]
        mask = mask.clone() if trees else mask
        for index in trees:
            state, count = self._slots[rows[index].slot], len(rows[index].tokens)
            paths = state.paths()
            self.masks.restrict(mask[index, 0], state.length, paths[-count:])
            depths = [state.length + len(path) - 1 for path in paths]
            inputs[1, index, :count] = depths[-count:]
            if keys is not None:
                keys[index, state.length : state.length + len(paths)] = torch.tensor(depths, device=self.device)
        tokens, positions = torch.from_numpy(inputs).to(self.device).unbind()
        return ForwardInput(tokens, positions, mask, window, first, keys)


def _groups(rows: Sequence[Append]) -> list[list[int]]:
    """Rows that share an executor call: all short ones together, each long one (a prefill) alone.

    In the order of their slots, since adjacent slots are read without a copy.
    """
    short = sorted((i for i, row in enumerate(rows) if len(row.tokens) < BAND), key=lambda i: rows[i].slot)
    return [*([short] if short else []), *([i] for i, row in enumerate(rows) if len(row.tokens) >= BAND)]
