"""The native executors that round the weights of heads and of trained draft models to 8 bits.

A draft need not be exact, and a step of one takes as long as its weights take to be read. Weights and activations are
rounded like those of Q8_0 in GGUF files: 32 neighbouring ones share a scale.
"""

from typing import Any

from torch import Tensor

from specbench_kit.models.executors.base import executors
from specbench_kit.models.executors.native_blocks import BlockProductsExecutor, LentRows
from specbench_kit.models.executors.native_draft import NativeDraftExecutor
from specbench_kit.models.executors.native_head import NativeHeadExecutor
from specbench_kit.models.weights.stored import weight_of

BLOCK = 32
"""Weights that share a scale."""


class RoundedRows(LentRows):
    """Tensors, whose matrices are rounded."""

    def matrix(self, *weights: Tensor) -> int:
        from gguf import GGMLQuantizationType, quants

        kind = GGMLQuantizationType.Q8_0
        values = [weight_of(weight).float().numpy() for weight in weights]
        return self._matrix([(quants.quantize(rows, kind), kind.value, len(rows), 0) for rows in values])

    def vector(self, *weights: Tensor | None) -> int | None:
        return self._vector([weight_of(weight).float().numpy() for weight in weights if weight is not None])


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
        fits = all(weight.shape[1] % BLOCK == 0 for weight in model.parameters() if weight.dim() > 1)
        return "" if fits else f"needs matrices whose inputs {BLOCK} divides"


@executors.register("native-8bit-head")
class RoundedHeadExecutor(RoundedExecutor, NativeHeadExecutor):
    """Runs EAGLE heads in 8 bits; the default for them where the processor multiplies bytes."""


@executors.register("native-8bit-draft")
class RoundedDraftExecutor(RoundedExecutor, NativeDraftExecutor):
    """Runs draft models of `skit train-draft` in 8 bits; the default for them where the processor multiplies bytes."""
