"""The interface to a model's forward pass: ragged rows in; logits, draft statistics and hidden
states out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import islice
from math import inf, isnan
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import Registry
from specbench_kit.models.executors.pending import AnyToken
from specbench_kit.models.executors.tree_rule import TreeRule
from specbench_kit.models.weights.blocks import blocks_of
from specbench_kit.models.weights.stored import StoredTensor, stored_tensor, with_weights


class Row(NamedTuple):
    """New tokens of one slot, whose KV is written at `start`, `start + 1`, ... of the slot.

    Every new token attends to the first `prefix` tokens of the slot and to its ancestors. `parents`
    holds the parent of every node after the prefix, the new tokens last: node i is stored at prefix
    + i, and -1 is the end of the prefix. Without parents everything in the slot is one chain.
    Logits are returned for the last `keep` tokens, and hidden states, if there are to be any, for
    these too, or for the last `states` where those are more and the executor says `states_apart`.
    """

    slot: int
    tokens: Sequence[int]
    start: int
    prefix: int
    parents: Sequence[int] | None = None
    keep: int = 1
    states: int = 0

    def paths(self) -> list[list[int]] | None:
        """Return for every new token its path of nodes, itself last; its position is prefix +
        len(path) - 1.
        """
        if self.parents is None:
            return None
        paths: list[list[int]] = []
        for node, parent in enumerate(self.parents):
            paths.append([*(paths[parent] if parent >= 0 else ()), node])
        return paths[len(paths) - len(self.tokens) :]


class Padding(NamedTuple):
    """The shape of a padded batch and a row's position in it, on which the rounding of the row's
    logits depends.

    The row was number `row` of `rows`, each of `width` new tokens and `length` keys; logits were computed from column
    `first` on.
    """

    rows: int
    row: int
    width: int
    first: int
    length: int


Candidates = Callable[
    [float, Sequence[int], Sequence[float], int, int, float], list[tuple[float, int, int]]
]
"""Arguments: temperature, rows, their base scores, candidates per row, candidates in all, and the
score to exceed.
"""

Statistics = Callable[[float], list[list[float]]]
"""Returns, for a temperature, four statistics of every row; see `Forward`."""


class Forward:
    """The results of a forward for the kept tokens of every row; `[row]` are the logits [kept,
    vocabulary] of one row.

    `hidden` holds hidden states by layer, in the order of `parts`: those of the kept tokens, or of
    more of a row's last ones. Executors that compute more on the way set two functions:
    `statistics(temperature)` returns max probability, entropy, margin and standard deviation of the
    logits [kept, 4] for softmax(logits / temperature); `candidates` returns the best next tokens of
    several rows as (score, row, token), see `DraftForward.likeliest`.
    """

    padding: Sequence[Padding] = ()
    """The padding of every row; empty for an executor whose rows do not depend on each other."""
    most_candidates = inf
    """The most candidates per row that `candidates` can return."""
    launching: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes the context in which a forward that was put off is started, such as a phase of a
    clock.
    """

    def __init__(
        self,
        parts: Sequence[Tensor],
        hidden: Mapping[int, Sequence[Tensor]] | None = None,
        statistics: Statistics | None = None,
        candidates: Candidates | None = None,
        padding: Sequence[Padding] = (),
    ) -> None:
        self._given = parts
        self._hidden = hidden or {}
        self.statistics = statistics
        self.candidates = candidates
        self.padding = padding

    def __getitem__(self, row: int) -> Tensor:
        return self._parts[row]

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        return self._given

    @cached_property
    def logits(self) -> Tensor:
        """Return the logits [kept, vocabulary] of all rows, one after the other."""
        return _together(self._parts)

    @cached_property
    def hidden(self) -> dict[int, Tensor]:
        """Return the hidden states [tokens, width] of all rows by layer."""
        return {layer: _together(parts) for layer, parts in self._hidden.items()}

    def states(self, row: int, layers: Sequence[int]) -> Tensor:
        """Return hidden states of one row's last tokens, the layers concatenated: [tokens, layers x
        width].
        """
        return torch.cat([self._hidden[layer][row] for layer in layers], dim=-1)

    def mask(self, tokens: Sequence[int]) -> None:
        """Give tokens the smallest logit of their row; minus infinity would make draft statistics
        NaN.
        """
        self._forget_descriptions()
        for part in self._parts:
            part[..., [token for token in tokens if token < part.shape[-1]]] = part.amin(
                -1, keepdim=True
            )

    def _forget_descriptions(self) -> None:
        """Forget what was computed of the logits, which are about to change."""
        self.statistics = self.candidates = None

    def is_nan(self) -> bool:
        """Return whether a logit is NaN, or infinities of both signs occur."""
        return isnan(self.logits.sum().item())

    def argmax(self) -> list[list[int]]:
        """Return the most likely next token after each kept token of each row."""
        best = iter(self.logits.argmax(-1).tolist())
        return [list(islice(best, len(part))) for part in self._parts]

    def top_tokens(self, count: int) -> list[list[int]]:
        """Return the `count` tokens with the highest logits of every kept token, best first."""
        tokens: list[list[int]] = self.logits.topk(
            min(count, self.logits.shape[-1])
        ).indices.tolist()
        return tokens

    def next_tokens(self) -> Sequence[AnyToken]:
        """Return the most likely next token of each row, of rows that keep one token; they may be
        pending.
        """
        return [token for (token,) in self.argmax()]


def _together(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Executor(ABC):
    """Runs one model and stores the KV of `slots` requests of at most `capacity` tokens each, in
    its own layout.

    Logits are cut to the first `vocabulary` entries, since models that share a tokenizer may pad
    their output differently; None keeps all of them.
    """

    priority = 0
    """Of the executors that support a model, the one with the highest priority is chosen."""
    dtype: torch.dtype | None = None
    """The type in which a model is loaded for this executor; None if it takes several."""
    weight_bits = 0
    """The bits of a weight where they are fewer than the model's own, which makes it another model;
    else 0.
    """
    scale_bits = 0
    """The bits of scales that are held beside each weight of `weight_bits`."""
    first_tokens: int | None = None
    """The number of tokens whose logits are computed, the first of the vocabulary; None for all."""
    bitwise = False
    """True if a token's logits are bitwise the same alone, in a batch, in a chunk and in a tree."""
    states_apart = False
    """True if a row may ask for the hidden states of more tokens than it asks logits of."""
    takes_pending = False
    """True if rows may hold tokens that are pending, which other executors would wait for."""
    grows_trees = False
    """True if trees that grow by a `TreeRule` are computed ahead of the host; see `begin_trees`."""
    reads_files = False
    """True if the executor reads a model's weights where they are, so that they need not be in
    memory before.
    """

    reads_blocks = False
    """True if the executor holds the blocks of a GGUF file as they are."""

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.slots = slots
        self.capacity = capacity
        self.vocabulary = vocabulary
        self.device: torch.device = model.device
        self.state_bytes: int = model.config.get_text_config().hidden_size * model.dtype.itemsize
        """The size of one token's hidden state in one layer."""

    @classmethod
    def missing(cls) -> str:
        """Return what this installation lacks for the executor; empty if nothing."""
        return ""

    @classmethod
    @abstractmethod
    def supports(cls, model: Any) -> bool:
        """Return whether this executor computes what the transformers model computes, up to
        rounding.
        """

    @property
    def products(self) -> str:
        """Return how products are rounded, if that is not by the model's data type alone: runs then
        differ in it.
        """
        return ""

    @property
    def kernels(self) -> str:
        """Return which kernels compute the work between the products of a layer on a GPU, and why
        not the fused ones; empty if there is no choice.
        """
        return ""

    @classmethod
    def refusal(cls, model: Any) -> str:
        """Return why the executor cannot run a model although it was named; empty if it can."""
        unsupported = (
            "" if cls.supports(model) else f"cannot run models of type '{model.config.model_type}'"
        )
        return cls.missing() or unsupported

    @abstractmethod
    def with_slots(self, slots: int, capacity: int) -> "Executor":
        """Return another executor over the same weights, with KV of its own."""

    @abstractmethod
    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        """Write the new tokens' KV and return their logits; no two rows belong to one slot.

        Hidden states of `layers` are returned too: 0 is the embeddings, n the output of layer n;
        the last one is normalised.
        """

    def begin_trees(self, rows: Sequence[Row], rule: TreeRule, temperature: float) -> Forward:
        """Do what `forward` does, for roots below which trees will grow by a rule.

        The following forwards are expected to be the levels of these trees, with scores by
        softmax(logits / temperature), and may be computed ahead; other forwards may come instead.
        """
        return self.forward(rows)

    def verify_ahead(  # noqa: B027  # most wait until the host knows the trees
        self, trees: Forward, rows: Sequence[Row], layers: Sequence[int]
    ) -> None:
        """Hear that the next forward will probably be of these rows, each of which ends with the
        root of a tree, and behind them of the nodes that the rule of the trees selects.

        `trees` are the results of another executor's `begin_trees`, in the order of the rows.
        """

    @abstractmethod
    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        """Move the KV at `sources`, in rising order, to `to`, `to + 1`, ...; no entry moves to a
        later position.
        """

    def release(self, slot: int) -> None:  # noqa: B027  # most keep nothing for a slot
        """Hear that a slot was given back: what was put off for its text alone need not be kept."""

    @abstractmethod
    def kv_bytes(self, slots: int, capacity: int) -> int:
        """Return the memory that the KV of this many slots takes, in bytes."""


executors: Registry[type[Executor]] = Registry("executor", "specbench_kit.models.executors")


def name_of(executor: Executor) -> str:
    """Return the registered name of an executor; the class name of one without, such as a pipeline
    stage.
    """
    names = {kind: name for name, kind in executors.all().items()}
    return names.get(type(executor), type(executor).__name__)


def make_executor(
    model: Any, slots: int, capacity: int, vocabulary: int | None, name: str | None = None
) -> Executor:
    """Return the fastest executor that supports the model, or the named one."""
    kind = _fastest(model) if name is None else executors.get(name)
    if name is not None and (refusal := kind.refusal(model)):
        raise SkitError(f"executor '{name}' {refusal}")
    return kind(model if kind.reads_files else with_weights(model), slots, capacity, vocabulary)


def held_bytes(model: Any, name: str | None = None) -> int:
    """Return the bytes of weights that `make_executor` will read into memory; 0 of a model whose
    weights are there.
    """
    if not isinstance(model, nn.Module):  # a synthetic model
        return 0
    # A tied output matrix is the same parameter as the embedding, and counts once.
    weights = [
        (weight, stored)
        for weight in set(model.parameters())
        if (stored := stored_tensor(weight)) is not None
    ]
    if not weights:
        return 0
    kind = _fastest(model) if name is None else executors.get(name)
    bits: int = sum(_held_bits(kind, weight, stored) for weight, stored in weights)
    return bits // 8


def _held_bits(kind: type[Executor], weight: Tensor, stored: StoredTensor) -> int:
    """Return the bits of memory that a parameter will take."""
    if kind.weight_bits and weight.dim() > 1:
        return weight.numel() * (kind.weight_bits + kind.scale_bits)
    if kind.reads_blocks and (blocks := blocks_of(weight)) is not None:
        return 8 * blocks.size_bytes
    in_file = (
        stored.dtype.itemsize
        if kind.reads_files and stored.dtype is not None
        else weight.dtype.itemsize
    )
    return weight.numel() * 8 * in_file


def _fastest(model: Any) -> type[Executor]:
    able = [executor for executor in executors.all().values() if executor.supports(model)]
    if not able:
        raise SkitError(
            f"models of type '{model.config.model_type}' cannot be run: every layer must attend causally to a KV "
            "cache, with explicit positions; use another model"
        )
    return max(able, key=lambda executor: executor.priority)
