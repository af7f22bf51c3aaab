"""Feature heads on CPU in one call per forward."""

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from specbench_kit.models.executors.base import Forward, Row, executors
from specbench_kit.models.executors.head import over_all
from specbench_kit.models.executors.head_states import HeadStates
from specbench_kit.models.executors.native import NativeExecutor, NativeForward, computable
from specbench_kit.models.heads.model import HeadModel


@executors.register("native-head")
class NativeHeadExecutor(NativeExecutor):
    """Feature heads with what `native` compiles."""

    bitwise = False  # what it is told goes through torch

    def __init__(self, model: HeadModel, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, None)
        self.reads, self.vocabulary = model.config.layers, vocabulary
        self._fuse, self._tokens, self._said = model.fc, model.tokens, model.tokens.tolist()
        self._whole = model.config.layer.vocab_size
        self.states = HeadStates(slots, capacity, self._width, torch.float32, self.device)

    @classmethod
    def supports(cls, model: Any) -> bool:
        return not cls.missing() and isinstance(model, HeadModel) and model.device.type == "cpu" and computable(model)

    def tell(self, slot: int, states: Tensor) -> None:
        self.states.tell(slot, self._fuse(states))

    def forget(self, slot: int) -> None:
        self.states.forget(slot)

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        given = self.states.read(rows)
        made = self.states.place(rows[0]) if len(rows) == 1 else torch.empty_like(given)
        found = self._forward(rows, layers, (given.data_ptr(), made.data_ptr()))
        if len(rows) > 1:
            self.states.keep(rows, made)
        return _HeadForward(found, self._said, self._tokens, self._whole, self.vocabulary)

    def beside(self, slots: int, capacity: int) -> "NativeHeadExecutor":
        other = super().beside(slots, capacity)
        assert isinstance(other, NativeHeadExecutor)
        other.states = HeadStates(slots, capacity, self._width, torch.float32, self.device)
        return other

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        super().move(slot, sources, to)
        self.states.move(slot, sources, to)

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return int(super().kv_bytes(slots, capacity) + 2 * slots * capacity * self._width * 4)


class _HeadForward(Forward):
    """Logits of all the target's tokens are made only where somebody asks for more than the likeliest.

    `said` and `tokens` are the target's token of every one that the head can say.
    """

    def __init__(
        self, found: NativeForward, said: Sequence[int], tokens: Tensor, whole: int, vocabulary: int | None
    ) -> None:
        super().__init__(())
        self._found, self._said, self._tokens, self._whole = found, said, tokens, whole
        self._vocabulary = vocabulary or whole
        self._cut = self._vocabulary < whole

    @cached_property
    def logits(self) -> Tensor:
        return over_all(self._found.logits, self._tokens, self._whole)[:, : self._vocabulary]

    def __getitem__(self, row: int) -> Tensor:
        first = sum(self._found.counts[:row])
        return self.logits[first : first + self._found.counts[row]]

    def argmax(self) -> list[list[int]]:
        if self._cut:
            best = iter(self.logits.argmax(-1).tolist())
            return [list(islice(best, count)) for count in self._found.counts]
        return [[self._said[token] for token in row] for row in self._found.argmax()]

    def mask(self, tokens: Sequence[int]) -> None:
        self.logits[:, list(tokens)] = self.logits.amin(-1, keepdim=True)
        self._cut = True
