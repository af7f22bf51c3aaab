"""Runs models without weights: the next token is a hash of the tokens before it, and KV stores that
hash.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.agreement import Agreement, logits_of
from specbench_kit.models.executors.base import Executor, Forward, Row, executors, make_executor

CERTAIN = 1000.0
"""Logit of the target's token, whose distribution has no other at any temperature."""
_WORD = (1 << 64) - 1


class _Purpose(IntEnum):
    """The purposes of a path's hash, which make their random numbers independent."""

    ANSWER = 1
    RANK = 2
    CHANCE = 3
    SHARED = 4
    OTHERS = 5


class _State(NamedTuple):
    """The hash of a path of tokens, the hash of its part before the current block, and its
    length.
    """

    path: int
    block: int
    length: int


@executors.register("synthetic")
class SyntheticExecutor(Executor):
    """Derives tokens from hashes of the context; a draft ranks the target's token as its
    `agreement` says.
    """

    bitwise = True

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, vocabulary)
        self._body = (
            make_executor(model.body, slots, capacity, None) if model.body is not None else None
        )
        self._agreement: Agreement | None = model.agreement
        self._size = vocabulary or int(model.config.vocab_size)
        self._model = model
        self._kv = [[_BEGINNING] * capacity for _ in range(slots)]

    @classmethod
    def supports(cls, model: Any) -> bool:
        return bool(model.config.model_type == "synthetic")

    def with_slots(self, slots: int, capacity: int) -> "SyntheticExecutor":
        return SyntheticExecutor(self._model, slots, capacity, self.vocabulary)

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        if layers:
            raise SkitError(
                "a synthetic target has no hidden states: choose a method whose drafter reads none"
            )
        if self._body is not None:
            known = int(self._model.body.config.get_text_config().vocab_size)
            # The host chooses the tokens, so that every forward is waited for.
            self._body.forward([_within(known, row) for row in rows]).argmax()
        return Forward([self._logits(self._write(row)) for row in rows])

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        kv = self._kv[slot]
        kv[to : to + len(sources)] = [kv[source] for source in sources]
        if self._body is not None:
            self._body.move(slot, sources, to)

    def release(self, slot: int) -> None:
        if self._body is not None:
            self._body.release(slot)

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return 24 * slots * capacity if self._body is None else self._body.kv_bytes(slots, capacity)

    def _write(self, row: Row) -> list[_State]:
        """Store the hashes of the new tokens and return those of the kept ones."""
        kv = self._kv[row.slot]
        block = self._agreement.block if self._agreement else 1
        positions = range(row.start, row.start + len(row.tokens))
        if row.parents is None:
            above: Sequence[int] = range(row.start - 1, positions.stop - 1)
        else:
            above = [
                row.prefix + parent for parent in row.parents[len(row.parents) - len(row.tokens) :]
            ]
        for position, before, token in zip(positions, above, row.tokens, strict=True):
            state = kv[before] if before >= 0 else _BEGINNING
            path = _mixed(state.path + token + 1)
            length = state.length + 1
            kv[position] = _State(path, state.block if length % block else path, length)
        return kv[positions.stop - row.keep : positions.stop]

    def _logits(self, states: Sequence[_State]) -> Tensor:
        """Return the logits [states, vocabulary], float64 so that probabilities are the same on
        every processor.
        """
        if self._agreement is None:
            rows = torch.zeros(len(states), self._size, dtype=torch.float64)
            rows[range(len(states)), [self._answer(state) for state in states]] = CERTAIN
            return rows.to(self.device)
        tokens, logits, others = zip(
            *(self._ranked(state, self._agreement) for state in states), strict=True
        )
        rows = torch.tensor(others, dtype=torch.float64)[:, None].repeat(1, self._size)
        return rows.scatter_(1, torch.tensor(tokens), torch.tensor(logits, dtype=torch.float64)).to(
            self.device
        )

    def _ranked(self, state: _State, agreement: Agreement) -> tuple[list[int], list[float], float]:
        """Return the draft's likeliest tokens and one more with their logits, and the logit of
        every other token.
        """
        shared = _uniform(state.path, _Purpose.SHARED) < agreement.shared
        chance = agreement.chance(_uniform(state.block if shared else state.path, _Purpose.CHANCE))
        shares, logits, other = _at(agreement, chance, self._size - len(agreement.ranks))
        answer = self._answer(state)
        rank = self._rank(state, shares)
        first = _hashed(state.path, _Purpose.OTHERS) % (self._size - 1)
        tokens = [
            (answer + 1 + (first + i) % (self._size - 1)) % self._size
            for i in range(len(logits) + 1)
        ]
        tokens[rank] = answer
        # A target token without a rank gets the lowest logit, so that wider trees do not contain it
        # by chance.
        return tokens, [*logits, other - 1e-3 if rank == len(logits) else other], other

    def _answer(self, state: _State) -> int:
        return _hashed(state.path, _Purpose.ANSWER) % self._size

    def _rank(self, state: _State, shares: Sequence[float]) -> int:
        """Return the rank of the target's token among the draft's, from 0; len(shares) if it is
        none of them.
        """
        remainder = _uniform(state.path, _Purpose.RANK)
        for rank, share in enumerate(shares):
            remainder -= share
            if remainder < 0:
                return rank
        return len(shares)


def _within(vocabulary: int, row: Row) -> Row:
    """Return a row whose tokens a model with so many of them knows."""
    return row._replace(tokens=[token % vocabulary for token in row.tokens])


@lru_cache
def _at(agreement: Agreement, chance: float, others: int) -> tuple[list[float], list[float], float]:
    """Return the chances of the ranks, their logits and the logit of other tokens; cached, as
    blocks share them.
    """
    return agreement.shares(chance), *logits_of(
        agreement.shares(agreement.reported(chance)), others
    )


def _mixed(number: int) -> int:
    """Return the next output of SplitMix64's mixing function (Steele, Lea and Flood 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _WORD
    return number ^ (number >> 31)


_BEGINNING = _State(_mixed(0), _mixed(0), 0)


def _hashed(path: int, purpose: _Purpose) -> int:
    return _mixed(path ^ _mixed(purpose))


def _uniform(path: int, purpose: _Purpose) -> float:
    """Return a random number from 0 to below 1."""
    return (_hashed(path, purpose) >> 11) * 2.0**-53
