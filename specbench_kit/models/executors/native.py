"""Runs Llama-like models on a CPU in one call per forward, with stored weights and fp32 arithmetic.

Every output is one sum in one order, so the logits of a token do not depend, bitwise, on the batch,
the chunk, the tree or the number of threads.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.models.drafts.reduced import is_reduced
from specbench_kit.models.executors.base import Executor, Forward, Row, executors, name_of
from specbench_kit.models.executors.library import Library, Logits, load_library
from specbench_kit.models.executors.native_weights import (
    KINDS,
    Lent,
    LentTensors,
    head_dim_of,
    is_llama_like,
    make_decoder,
    narrowest_type,
)

UNLIKE_LLAMA = (
    "cannot compute this model of type '{}': it computes Llama, Mistral, Qwen2 and Qwen3 with SiLU, full attention and "
    "sizes that 16 divides, on a CPU; use transformers"
)


@executors.register("native")
class NativeExecutor(Executor):
    """Runs models of the types Llama, Mistral, Qwen2 and Qwen3; needs the extension compiled at
    installation.
    """

    priority = 2
    bitwise = True
    reads_files = True
    states_apart = True

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, vocabulary)
        library = self.library()
        if library is None:
            raise SkitError(f"executor '{name_of(self)}' {self.missing()}")
        self._library = library
        config = model.config.get_text_config()
        outputs = model.lm_head.out_features
        self._size = min(vocabulary or outputs, outputs)
        self._computed = min(self.first_tokens or self._size, self._size)
        self._width = config.hidden_size
        self._kv_bytes = (
            8 * config.num_hidden_layers * config.num_key_value_heads * head_dim_of(model)
        )
        try:
            self._decoder = make_decoder(library, model, *self.lending(model), slots, capacity)
        except ValueError as error:
            raise _too_large() from error

    @classmethod
    def library(cls) -> Library | None:
        """Return the build that computes the forwards; None if this installation or processor lacks
        it.
        """
        return load_library()

    @classmethod
    def stored(cls, model: Any) -> tuple[int, torch.dtype]:
        """Return the library's number for the kind of products, and the type in which weights are
        handed to it.
        """
        dtype = narrowest_type(model)
        return KINDS[dtype], dtype

    @classmethod
    def lending(cls, model: Any) -> tuple[int, Callable[[], Lent]]:
        """Return the library's number for the kind of products, and what lends it the weights of a
        part.
        """
        kind, dtype = cls.stored(model)
        return kind, partial(LentTensors, dtype)

    @classmethod
    def missing(cls) -> str:
        return (
            "" if cls.library() else "was not compiled: install a C++ compiler, then the kit again"
        )

    @classmethod
    def supports(cls, model: Any) -> bool:
        return model.dtype == torch.float32 and not cls.refusal(model)

    @classmethod
    def refusal(cls, model: Any) -> str:
        computed = model.device.type == "cpu" and is_llama_like(model) and not is_reduced(model)
        return cls.missing() or ("" if computed else UNLIKE_LLAMA.format(model.config.model_type))

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        return self._forward(rows, layers, (None, None))

    def _forward(
        self, rows: Sequence[Row], layers: Sequence[int], states: tuple[int | None, int | None]
    ) -> "NativeForward":
        """Compute a forward; a head passes addresses of [tokens, width], of the states it reads and
        of its outputs.
        """
        counts = [row.keep for row in rows]
        told = [max(row.keep, row.states) for row in rows]
        hidden = torch.empty((len(layers), sum(told), self._width)) if layers else None
        address = None if hidden is None else hidden.data_ptr()
        threads = torch.get_num_threads()
        try:
            outputs = self._size, self._computed
            results = self._library.forward(
                self._decoder, rows, threads, *outputs, layers, address, *states
            )
        except ValueError as error:
            raise _refused(error) from error
        by_layer = (
            {}
            if hidden is None
            else {layer: hidden[i].split(told) for i, layer in enumerate(layers)}
        )
        return NativeForward(*results, self._size, counts, by_layer)

    def with_slots(self, slots: int, capacity: int) -> "NativeExecutor":
        executor = copy(self)
        executor.slots = slots
        executor.capacity = capacity
        try:
            executor._decoder = self._library.share_weights(self._decoder, slots, capacity)
        except ValueError as error:
            raise _too_large() from error
        return executor

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        try:
            self._library.move(self._decoder, slot, sources, to)
        except ValueError as error:
            raise _refused(error) from error

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return int(self._kv_bytes * slots * capacity)


class NativeForward(Forward):
    """Answers from what the library has computed on the way, without reading the logits again."""

    def __init__(
        self,
        logits: Logits,
        best: list[int],
        size: int,
        counts: list[int],
        hidden: Mapping[int, Sequence[Tensor]],
    ) -> None:
        # The base class's constructor is left out: for a small model it would be most of the
        # overhead of a forward.
        self._hidden = hidden
        self.statistics = logits.describe
        self.candidates = logits.candidates
        self._buffer = logits
        self._best = best
        self._size = size
        self.counts = counts

    @cached_property
    def logits(self) -> Tensor:
        values = torch.frombuffer(self._buffer, dtype=torch.float32)
        return values.view(len(self._best), -1)[:, : self._size]

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        return list(self.logits.split(self.counts))

    def mask(self, tokens: Sequence[int]) -> None:
        super().mask(tokens)
        self._best = [-1] * len(self._best) if self.is_nan() else self.logits.argmax(-1).tolist()

    def is_nan(self) -> bool:
        return -1 in self._best

    def argmax(self) -> list[list[int]]:
        best = iter(self._best)
        return [list(islice(best, count)) for count in self.counts]


def _refused(error: ValueError) -> SkitError:
    return SkitError(f"the model was asked for {error}")


def _too_large() -> SkitError:
    return SkitError("the model and its KV do not fit into memory: lower --batch-size")
