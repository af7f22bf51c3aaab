"""Slots of KV over an executor: append provisional tokens, commit one path, drop the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from operator import eq
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.base import Executor, Forward, Row
from specbench_kit.models.executors.tree_rule import TreeRule


@dataclass(slots=True)
class Append:
    """New tokens of one request.

    `parents[i]` is the provisional node that token i follows, counted over all of the slot's provisional
    nodes, or -1 for the committed prefix; None makes every token follow the one before. Logits and hidden
    states are returned for the last `keep` tokens, hidden states also for the last `states`, see `Row`.
    """

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    keep: int = 1
    states: int = 0

    @classmethod
    def with_states(
        cls,
        runner: "HoldsStates",
        slot: int,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        keep: int = 1,
    ) -> "Append":
        """Return a row with the hidden states of all of its tokens.

        An executor that returns states of kept tokens alone computes the logits of all of them,
        which is a fifth of a prompt's time or more.
        """
        all_of_them = len(tokens)
        return cls(slot, tokens, parents, keep if runner.states_apart else all_of_them, all_of_them)


class GrownBy(NamedTuple):
    """A rule by which trees grow, and the temperature of the probabilities that it reads."""

    rule: TreeRule
    temperature: float


class HoldsStates(Protocol):
    """What says whether its rows may ask for more hidden states than logits."""

    @property
    def states_apart(self) -> bool:
        """Return whether they may."""


@dataclass(slots=True)
class _Slot:
    length: int = 0
    parents: list[int] = field(default_factory=list)
    is_chain: bool = True

    def append(self, row: Append) -> None:
        before = len(self.parents)
        count = len(row.tokens)
        chain = range(before - 1, before - 1 + count)
        self.is_chain = self.is_chain and (row.parents is None or all(map(eq, row.parents, chain)))
        self.parents += row.parents or chain

    def clear(self) -> None:
        self.parents.clear()
        self.is_chain = True


def refuse_nan(result: Forward) -> None:
    """Raise SkitError if a model's logits hold NaN, or infinities of both signs."""
    if result.is_nan():
        raise _nan()


def refuse_nan_in(values: Tensor) -> None:
    """Raise SkitError if a tensor computed from the logits holds NaN."""
    if isnan(values.sum().item()):
        raise _nan()


def _nan() -> SkitError:
    return SkitError("the model returned NaN logits: check its weights, or try --dtype float32")


class Runner:
    """One model's KV slots; prefill, chains and trees all go through `forward` and `commit`.

    A slot holds at most `capacity` tokens, provisional ones included.
    """

    asynchronous = False

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.capacity = executor.capacity
        self.device = executor.device
        self.vocabulary = executor.vocabulary
        self.takes_pending = executor.takes_pending
        self.grows_trees = executor.grows_trees
        self.states_apart = executor.states_apart
        self.masked: Sequence[int] = ()
        """Tokens that the model may read but never produces."""
        self._slots = [_Slot() for _ in range(executor.slots)]
        self._free = list(range(executor.slots))[::-1]

    def acquire(self) -> int:
        """Return an empty slot."""
        slot = self._free.pop()
        self._slots[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self.executor.release(slot)
        self._free.append(slot)
        self._free.sort(reverse=True)

    def length(self, slot: int) -> int:
        """Return the number of committed tokens in a slot."""
        return self._slots[slot].length

    def provisional(self, slot: int) -> int:
        """Return the number of appended tokens that are not yet committed."""
        return len(self._slots[slot].parents)

    def begin(self, rows: Sequence[Append], layers: Sequence[int] = ()) -> Callable[[], Forward]:
        """Start a forward and return a function that waits for it; other runners compute it in
        another process.
        """
        result = self.forward(rows, layers)
        return lambda: result

    def forward(
        self,
        rows: Sequence[Append],
        layers: Sequence[int] = (),
        extra_rows: Sequence[Row] = (),
        trees: GrownBy | None = None,
    ) -> Forward:
        """Append every row's tokens as provisional; return logits of the kept ones and hidden
        states of `layers`.

        `extra_rows` are computed in the same batch without being appended to their slots. With
        `trees` the rows end with roots below which trees will grow by that rule.
        """
        if trees is not None:
            result = self.executor.begin_trees([*map(self._row, rows)], *trees)
        else:
            result = self.executor.forward([*map(self._row, rows), *extra_rows], layers)
        if self.masked:
            with torch.inference_mode():
                result.mask(self.masked)
        return result

    def verify_ahead(
        self,
        trees: Forward,
        lacking: Sequence[tuple[int, Sequence[int]]],
        layers: Sequence[int] = (),
    ) -> None:
        """Say that the next forward will probably verify trees which still grow on a card.

        `lacking` has for each tree a slot, and the tokens that its KV lacks up to the root; `trees`
        are the results of the draft model's forward from which they grow. Nothing is appended to
        the slots.
        """
        rows = [Row(slot, tokens, self.length(slot), self.length(slot)) for slot, tokens in lacking]
        self.executor.verify_ahead(trees, rows, layers)

    def commit(self, slot: int, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the provisional nodes `path` (from the prefix down) part of the prefix and drop the
        others.

        The nodes `keep`, a connected tree below the end of the path, stay provisional and are
        numbered from 0 on.
        """
        state = self._slots[slot]
        nodes = [*path, *keep]
        moved = next((i for i, node in enumerate(nodes) if i != node), len(nodes))
        if moved < len(nodes):
            self.executor.move(
                slot, [state.length + node for node in nodes[moved:]], state.length + moved
            )
        state.length += len(path)
        new_index = {node: i for i, node in enumerate(keep)}
        parents = [new_index.get(state.parents[node], -1) for node in keep]
        state.clear()
        if parents:
            state.append(Append(slot, [0] * len(parents), parents))

    def _row(self, new: Append) -> Row:
        """Append to a slot and return the row that its executor computes."""
        state = self._slots[new.slot]
        count = len(new.tokens)
        start = state.length + len(state.parents)
        if start + count > self.capacity:
            raise SkitError(f"a request outgrew its KV slot of {self.capacity} tokens")
        state.append(new)
        parents = None if state.is_chain else state.parents
        return Row(new.slot, new.tokens, start, state.length, parents, new.keep, new.states)
