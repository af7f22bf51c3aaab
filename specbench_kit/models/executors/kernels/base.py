"""The contract of the kernels of a layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench_kit.models.executors.kernels.compact_mask import CompactMask

PART = 256
"""The keys that one program of an attention reads, where several share those of a row."""
MOST_IN_PARTS = 128
"""The most tokens of a row for whose attention programs share keys: of more, there are enough
programs anyhow.
"""


class LayerSizes(NamedTuple):
    """What the layers of a model measure; with `has_head_norms` queries and keys are normalised."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    has_head_norms: bool


class Norm(Protocol):
    """Returns the RMS norm of hidden states [..., hidden], times the weight [hidden]."""

    def __call__(self, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor: ...


class AddNorm(Protocol):
    """Returns the sum of two tensors [..., hidden], and the RMS norm of that sum."""

    def __call__(
        self, hidden: Tensor, added: Tensor, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]: ...


class Rotate(Protocol):
    """Rotates the queries and keys of new tokens by their positions, and writes KV to a store.

    `projected` [rows, width, heads + 2 * kv_heads, dim] has the queries, keys and values of every
    token. Queries and keys are normalised first where `norms` [heads + kv_heads, dim] are given.
    `cosines` and `sines` [rows, width, dim] belong to the tokens' positions; the first half of the
    sines is negated.

    `keys` and `values` [slots, kv_heads, capacity, dim] are the store, if KV is to be written:
    that of a token goes to its slot of `slots` [rows, 1] and its cell of `cells` [rows, width].

    Returns the queries [rows, kv_heads, heads // kv_heads * width, dim], those of heads that share
    keys one below the other, and the new keys [rows, kv_heads, width, dim].
    """

    def __call__(
        self,
        projected: Tensor,
        cosines: Tensor,
        sines: Tensor,
        norms: Tensor | None,
        epsilon: float,
        heads: int,
        keys: Tensor | None,
        values: Tensor | None,
        slots: Tensor | None,
        cells: Tensor | None,
    ) -> tuple[Tensor, Tensor]: ...


class Gate(Protocol):
    """Returns silu(gate) * up [..., width] of both side by side, [..., 2 * width]."""

    def __call__(self, gates: Tensor) -> Tensor: ...


class Attention(Protocol):
    """Returns what new tokens find in the keys that a mask lets them attend to.

    `queries` [rows, kv_heads, heads // kv_heads * width, dim] are what `Rotate` returns, `keys` and
    `values` [rows, kv_heads, keys, dim], of which the last two numbers lie side by side. The result
    [rows, width, heads * dim] is contiguous.
    """

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor: ...


MakeAttention = Callable[[CompactMask, int, torch.dtype], Attention]
"""Makes the attention of all layers of a forward from its mask, the heads that share keys, and the
data type of queries.
"""


@dataclass(frozen=True)
class LayerKernels:
    """The work between the matrix products of a layer.

    Everything is rounded where torch's operations round, so that two of them differ in the order
    of a norm's sum, in exponentials, and in products that a GPU adds unrounded; attentions differ
    also in what is rounded between the products of their own.
    """

    name: str
    norm: Norm
    add_norm: AddNorm
    rotate: Rotate
    attention: MakeAttention
    gate: Gate
