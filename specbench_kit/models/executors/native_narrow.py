"""The native executors whose products are narrower than fp32: twice the arithmetic, and rounding of
their own.

Each is bitwise independent of the batch, as `native` is, and lossless against its own plain
decoding. Their tokens are never compared with those of `native`, whose rounding differs.
"""

from typing import Any

import torch

from specbench_kit.core.errors import require
from specbench_kit.models.executors.base import executors
from specbench_kit.models.executors.library import NarrowLibrary, load_narrow_library
from specbench_kit.models.executors.native import NativeExecutor
from specbench_kit.models.executors.native_head import NativeDraftExecutor, NativeHeadExecutor
from specbench_kit.models.executors.native_weights import is_llama_like

PAIRS = 3
BYTES = 4
"""The library's numbers of the kinds of products."""
MISSING = (
    "needs an x86 processor with AVX512-BF16 and AVX512-VNNI (Intel since Sapphire Rapids, AMD since Zen 4) and a C++ "
    "compiler when the kit is installed; 'native' needs neither"
)


class NarrowExecutor(NativeExecutor):
    """Runs Llama-like models by the build for narrow products."""

    priority = 1
    dtype = torch.bfloat16
    rounding = ""
    """How weights and activations are rounded before every product."""

    @classmethod
    def library(cls) -> NarrowLibrary | None:
        return load_narrow_library()

    @property
    def products(self) -> str:
        library = self.library()
        assert library is not None
        # AVX512-BF16 and multiply-adds of fp32 give the same bits, AMX others.
        return f"{self.rounding} on AMX" if library.products(None) == "AMX" else self.rounding

    @classmethod
    def supports(cls, model: Any) -> bool:
        return model.dtype == torch.bfloat16 and not cls.refusal(model)

    @classmethod
    def missing(cls) -> str:
        return "" if cls.library() else MISSING


@executors.register("native-bf16")
class NativeBf16Executor(NarrowExecutor):
    """Runs Llama-like models with weights in bf16 and activations rounded to bf16 before every
    product.
    """

    rounding = "weights and activations in bf16"

    @classmethod
    def stored(cls, model: Any) -> tuple[int, torch.dtype]:  # noqa: ARG003
        return PAIRS, torch.bfloat16


@executors.register("native-bf16-head")
class NativeBf16HeadExecutor(NativeHeadExecutor, NativeBf16Executor):
    """Runs EAGLE heads with the products of `native-bf16`."""


@executors.register("native-bf16-draft")
class NativeBf16DraftExecutor(NativeDraftExecutor, NativeBf16Executor):
    """Runs draft models of `skit train-draft` with the products of `native-bf16`."""


@executors.register("native-int8")
class NativeInt8Executor(NarrowExecutor):
    """Runs Llama-like models with weights in 8 bits, which makes another model of them, and
    activations in 8 bits.

    64 neighbouring weights of an output share a scale, and so do 64 neighbouring activations of a
    token.
    """

    weight_bits = 8
    rounding = "weights and activations in 8 bits, in blocks of 64"

    @classmethod
    def supports(cls, model: Any) -> bool:  # noqa: ARG003
        return False  # only where it is named

    @classmethod
    def stored(cls, model: Any) -> tuple[int, torch.dtype]:  # noqa: ARG003
        return BYTES, torch.bfloat16


def require_fast(model: Any) -> None:
    """Raise SkitError for a model in bf16 on a CPU that only a several times slower executor would
    run.
    """
    if model.dtype == torch.bfloat16 and is_llama_like(model) and model.device.type == "cpu":
        require(
            not NativeBf16Executor.missing(),
            f"--dtype bfloat16 on a CPU is computed by 'native-bf16', which {NativeBf16Executor.missing()}: leave out "
            "--dtype, or give --executor transformers where the command has it, which takes several times as long",
        )
