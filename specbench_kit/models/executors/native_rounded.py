"""The native executors whose weights are blocks that share a scale: those of a GGUF file, or
rounded to 8 bits here.

A draft need not be exact, and a step of one takes as long as its weights take to be read, so that
heads and trained draft models are rounded. Weights and activations are rounded like those of Q8_0
in GGUF files: 32 neighbouring ones share a scale.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.models.executors.base import executors
from specbench_kit.models.executors.library import (
    Library,
    byte_products,
    load_library,
    load_narrow_library,
)
from specbench_kit.models.executors.native import NativeExecutor
from specbench_kit.models.executors.native_head import NativeDraftExecutor, NativeHeadExecutor
from specbench_kit.models.executors.native_weights import Lent
from specbench_kit.models.weights.blocks import FLOAT, StoredBlocks, blocks_of
from specbench_kit.models.weights.stored import weight_of

BLOCK_PRODUCTS = 5
"""The library's number of this kind of products."""


class FileRows(ctypes.Structure):
    """The structure `FileRows` of blocks.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("most_bits", ctypes.c_int32),
    ]


class LentRows:
    """Matrices of rows of blocks, and vectors, that the library reads."""

    def __init__(self) -> None:
        self._alive: list[Any] = []

    def _matrix(
        self, parts: Sequence[tuple[NDArray[np.uint8], int, int, int]], most_bits: int = 0
    ) -> int:
        """Return the address of parts: their blocks, the number of their type, their rows, and
        `heads` of blocks.h.
        """
        rows = [
            FileRows(self._lend(blocks), number, count, heads, most_bits)
            for blocks, number, count, heads in parts
        ]
        lent = (FileRows * (len(rows) + 1))(*rows)  # the one behind them has no rows
        self._alive.append(lent)
        return ctypes.addressof(lent)

    def _vector(self, parts: Sequence[NDArray[np.float32]]) -> int | None:
        return self._lend(np.concatenate(parts)) if parts else None

    def _lend(self, values: NDArray[Any]) -> int:
        self._alive.append(values)
        return int(values.ctypes.data)


class LentBlocks(LentRows):
    """Tensors of a GGUF file, whose codes of more than `most_bits` the library rounds unless that
    is 0.
    """

    def __init__(self, most_bits: int = 0) -> None:
        super().__init__()
        self._most_bits = most_bits

    def matrix(self, *weights: Tensor) -> int:
        stored = [_stored(weight) for weight in weights]
        parts = [(blocks.read(), blocks.type, blocks.shape[0], blocks.heads) for blocks in stored]
        return self._matrix(parts, self._most_bits)

    def vector(self, *weights: Tensor | None) -> int | None:
        return self._vector([_stored(weight).numbers() for weight in weights if weight is not None])


def _stored(weight: Tensor) -> StoredBlocks:
    blocks = blocks_of(weight)
    assert blocks is not None
    return blocks


class BlockProductsExecutor(NativeExecutor):
    """Multiplies rows of blocks, as GGUF files have them, by activations in 8 bits."""

    priority = 3
    lent: Callable[[], Lent]
    """Makes what lends the weights' blocks to the library."""

    @classmethod
    def library(cls) -> Library | None:
        return load_narrow_library() or load_library()

    @classmethod
    def supports(cls, model: Any) -> bool:
        # Portable code unpacks every code by itself, which takes longer than products of fp32.
        return bool(byte_products()) and super().supports(model)

    @classmethod
    def lending(cls, model: Any) -> tuple[int, Callable[[], Lent]]:  # noqa: ARG003
        return BLOCK_PRODUCTS, cls.lent


@executors.register("native-blocks")
class NativeBlocksExecutor(BlockProductsExecutor):
    """Runs Llama-like models by the blocks of their GGUF files; the default for them."""

    reads_blocks = True
    lent: Callable[[], Lent] = LentBlocks

    @property
    def products(self) -> str:
        return "weights as in the GGUF file, activations in 8 bits"

    @classmethod
    def refusal(cls, model: Any) -> str:
        if reason := super().refusal(model):
            return reason
        parameters = [(weight, blocks_of(weight)) for weight in model.parameters()]
        if any(blocks is None for _, blocks in parameters):
            return "computes models of one GGUF file: use native, or transformers"
        unknown = {
            blocks.name
            for weight, blocks in parameters
            if blocks and not (blocks.is_product if weight.dim() > 1 else blocks.type == FLOAT)
        }
        return (
            f"cannot multiply by the blocks of {min(unknown)} in its file: use native"
            if unknown
            else ""
        )


@executors.register("native-blocks-head")
class NativeBlocksHeadExecutor(NativeBlocksExecutor, NativeHeadExecutor):
    """Runs EAGLE heads that were stored in 4 bits, with what they share with the target in 4 bits
    too.
    """

    priority = 4
    lent = partial(LentBlocks, 4)

    @property
    def products(self) -> str:
        return "weights in 4 bits, activations in 8 bits"


@executors.register("native-4bit")
class NativeFourBitExecutor(NativeBlocksExecutor):
    """Runs Llama-like models of GGUF files with every block in 4 bits, which makes another model of
    most files.

    It is for draft models, which need not be exact: a draft step takes as long as its weights take
    to be read.
    """

    weight_bits = 4
    scale_bits = 1  # two numbers of 16 bits for 32 weights
    lent = partial(LentBlocks, weight_bits)

    @classmethod
    def supports(cls, model: Any) -> bool:  # noqa: ARG003
        return False  # only where it is named

    @property
    def products(self) -> str:
        return "weights in 4 bits, activations in 8 bits"


@executors.register("native-4bit-64k")
class NativeFourBit64kExecutor(NativeFourBitExecutor):
    """Runs models as `native-4bit` does, and computes the logits of the first 65,536 tokens alone.

    Tokenizers number their tokens from frequent to rare, and the output layer of a small model with
    a large vocabulary is much of what a draft step reads (FR-Spec, arXiv 2502.14856, ranks tokens
    by how often they occur).
    """

    first_tokens = 65_536

    @property
    def products(self) -> str:
        return f"{super().products}, logits of the first {self.first_tokens:,} tokens"


@executors.register("native-4bit-32k")
class NativeFourBit32kExecutor(NativeFourBit64kExecutor):
    """Runs models as `native-4bit` does, and computes the logits of the first 32,768 tokens
    alone.
    """

    first_tokens = 32_768


BLOCK = 32
"""Weights that share a scale."""


class RoundedRows(LentRows):
    """Tensors, whose matrices are rounded."""

    def matrix(self, *weights: Tensor) -> int:
        from gguf import GGMLQuantizationType, quants

        kind = GGMLQuantizationType.Q8_0
        values = [weight_of(weight).float().numpy() for weight in weights]
        return self._matrix(
            [(quants.quantize(rows, kind), kind.value, len(rows), 0) for rows in values]
        )

    def vector(self, *weights: Tensor | None) -> int | None:
        return self._vector(
            [weight_of(weight).float().numpy() for weight in weights if weight is not None]
        )


class RoundedExecutor(BlockProductsExecutor):
    """Runs Llama-like models with weights that it rounds to 8 bits."""

    lent = RoundedRows

    @property
    def products(self) -> str:
        return "weights and activations in 8 bits, in blocks of 32"

    @classmethod
    def refusal(cls, model: Any) -> str:
        if reason := super().refusal(model):
            return reason
        fits = all(
            weight.shape[1] % BLOCK == 0 for weight in model.parameters() if weight.dim() > 1
        )
        return "" if fits else f"needs matrices whose inputs {BLOCK} divides"


@executors.register("native-8bit-head")
class RoundedHeadExecutor(RoundedExecutor, NativeHeadExecutor):
    """Runs EAGLE heads in 8 bits; the default for them where the processor multiplies bytes."""


@executors.register("native-8bit-draft")
class RoundedDraftExecutor(RoundedExecutor, NativeDraftExecutor):
    """Runs draft models of `skit train-draft` in 8 bits; the default for them where the processor
    multiplies bytes.
    """
