"""The one door to a model's forward pass: ragged rows in; logits, draft statistics and hidden states out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import isnan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import Registry


class Row(NamedTuple):
    """New tokens of one slot, whose KV goes to the places `start`, `start + 1`, ... of the slot.

    Every new token sees the first `prefix` places. `parents` are those of all nodes that lie behind them, the new ones
    last: node i is at the place prefix + i, and -1 stands for the end of the prefix. A token sees the nodes above it
    besides. Without parents everything in the slot is one chain. Logits are wanted after the last `keep` tokens.
    """

    slot: int
    tokens: Sequence[int]
    start: int
    prefix: int
    parents: Sequence[int] | None = None
    keep: int = 1

    def paths(self) -> list[list[int]] | None:
        """Of every new token the nodes that it sees, itself last; its position is prefix + how many they are - 1."""
        if self.parents is None:
            return None
        paths: list[list[int]] = []
        for node, parent in enumerate(self.parents):
            paths.append([*(paths[parent] if parent >= 0 else ()), node])
        return paths[len(paths) - len(self.tokens) :]


class Padding(NamedTuple):
    """How one row lay in a batch that was padded to one shape: what the rounding of its logits depends on.

    It was row `place` of `rows`, each of `width` new tokens and `length` keys; logits were computed from column `first`
    on.
    """

    rows: int
    place: int
    width: int
    first: int
    length: int


Candidates = Callable[[float, Sequence[int], Sequence[float], int, int, float], list[tuple[float, int, int]]]
"""By temperature, rows, their bases, the most per row, the most in all, and what all have to be above."""


class Forward:
    """What a forward gives for the kept tokens of every row; `[row]` are the logits [kept, vocabulary] of one.

    `hidden` holds, by layer, states of the rows' kept tokens as `parts` holds their logits. `statistics`, where an
    executor computes them on the way, gives max probability, entropy, margin and standard deviation of the logits
    [kept, 4] for softmax(logits / temperature). `candidates`, likewise, finds of the likeliest tokens of some kept rows
    those that score highest, as (score, row, token): see `DraftForward.likeliest`.
    """

    padding: Sequence[Padding] = ()
    """Of every row; empty where no row's logits depend on the others."""

    def __init__(
        self,
        parts: Sequence[Tensor],
        hidden: Mapping[int, Sequence[Tensor]] | None = None,
        statistics: Callable[[float], list[list[float]]] | None = None,
        candidates: Candidates | None = None,
        padding: Sequence[Padding] = (),
    ) -> None:
        self._given, self._hidden = parts, hidden or {}
        self.statistics, self.candidates = statistics, candidates
        self.padding = padding

    def __getitem__(self, row: int) -> Tensor:
        return self._parts[row]

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        return self._given

    @cached_property
    def logits(self) -> Tensor:
        """[kept, vocabulary] of all rows, one after the other."""
        return _together(self._parts)

    @cached_property
    def hidden(self) -> dict[int, Tensor]:
        """[kept, width] of all rows by layer."""
        return {layer: _together(parts) for layer, parts in self._hidden.items()}

    def states(self, row: int, layers: Sequence[int]) -> Tensor:
        """Hidden states of one row's kept tokens, those of the layers side by side: [kept, layers x width]."""
        return torch.cat([self._hidden[layer][row] for layer in layers], dim=-1)

    def mask(self, tokens: Sequence[int]) -> None:
        """Make tokens as unlikely as the least likely one: minus infinity would spoil draft statistics."""
        self.statistics = None
        for part in self._parts:
            part[..., [token for token in tokens if token < part.shape[-1]]] = part.amin(-1, keepdim=True)

    def is_nan(self) -> bool:
        """Whether any logit is not a number, or they are infinite of either sign."""
        return isnan(self.logits.sum().item())

    def argmax(self) -> list[list[int]]:
        """Most likely next token after each kept token of each row."""
        best = iter(self.logits.argmax(-1).tolist())
        return [list(islice(best, len(part))) for part in self._parts]


def _together(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Executor(ABC):
    """Runs one model and holds the KV of `slots` requests, each of at most `capacity` tokens, as it likes.

    Logits are cut to the first `vocabulary` entries, since models that share a tokenizer may pad their output
    differently; None leaves them whole.
    """

    priority = 0
    """Among executors that support a model, the highest priority is taken."""
    bitwise = False
    """Whether a token's logits are the same to the bit alone, in a batch, in a chunk and in a tree."""

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.slots, self.capacity, self.vocabulary = slots, capacity, vocabulary
        self.device: torch.device = model.device
        self.state_bytes: int = model.config.get_text_config().hidden_size * model.dtype.itemsize
        """Of one token's hidden state in one layer."""

    @classmethod
    def missing(cls) -> str:
        """What this installation lacks for it, if anything."""
        return ""

    @classmethod
    @abstractmethod
    def supports(cls, model: Any) -> bool:
        """Whether this executor computes exactly what the transformers model computes."""

    @abstractmethod
    def beside(self, slots: int, capacity: int) -> "Executor":
        """Another one over the same weights, with KV of its own."""

    @abstractmethod
    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        """Write the new tokens' KV; no two rows are of one slot.

        `layers` asks for hidden states: 0 the embeddings, n what n layers make of them, the last one normalised.
        """

    @abstractmethod
    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        """Bring the KV at the places `sources`, in rising order, to `to`, `to + 1`, ..., which do not lie behind."""

    @abstractmethod
    def kv_bytes(self, slots: int, capacity: int) -> int:
        """Memory that the KV of so many slots takes."""


executors: Registry[type[Executor]] = Registry("executor", "specbench_kit.models.executors")


def name_of(executor: Executor) -> str:
    """What an executor is registered as; of one that is not, such as a pipeline's stage, its class."""
    names = {kind: name for name, kind in executors.all().items()}
    return names.get(type(executor), type(executor).__name__)


def make_executor(model: Any, slots: int, capacity: int, vocabulary: int | None, name: str | None = None) -> Executor:
    """The fastest executor that supports the model, or the named one."""
    kind = _fastest(model) if name is None else executors.get(name)
    return kind(model, slots, capacity, vocabulary)


def _fastest(model: Any) -> type[Executor]:
    able = [executor for executor in executors.all().values() if executor.supports(model)]
    if not able:
        raise SkitError(
            f"models of type '{model.config.model_type}' cannot be run: every layer must attend to a KV cache, "
            "with explicit positions; use another model"
        )
    return max(able, key=lambda executor: executor.priority)
