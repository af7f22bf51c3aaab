"""Triton's interpreter, which computes kernels on the CPU, as GPUs compute (seen in Triton 3.9).

It cuts digits off where GPUs round to bf16, and multiplies the bits of matrices in bf16.
"""

from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter round to bf16, and multiply numbers in bf16, as GPUs do."""
    cast = InterpreterBuilder.cast_impl

    def truncate(builder: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) != (tl.float32, tl.bfloat16):
            return cast(builder, source, target)
        rounded = torch.from_numpy(source.data.copy()).to(torch.bfloat16)
        bits = rounded.view(torch.int16).numpy().view("uint16")
        return TensorHandle(bits, target.scalar)

    def multiply(_: Any, first: Any, second: Any, added: Any, *_others: Any) -> Any:
        # Sums in fp64 depend neither on the processor nor on the other rows of a matrix.
        exact = _exact(first) @ _exact(second)
        return TensorHandle(exact.float().numpy() + added.data, tl.float32)

    monkeypatch.setattr(InterpreterBuilder, "create_fp_trunc", truncate)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", multiply)


def _exact(matrix: Any) -> Tensor:
    """Return a matrix in fp64; one in bf16 is kept as its bits."""
    if matrix.dtype.scalar != tl.bfloat16:
        return torch.from_numpy(matrix.data.copy()).double()
    bits = torch.from_numpy(matrix.data.view("int16").copy())
    return bits.view(torch.bfloat16).double()


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ulps(computed: Tensor, expected: Tensor) -> int:
    """Return by how many representable numbers two tensors differ at most."""
    assert computed.shape == expected.shape
    assert computed.dtype == expected.dtype
    kind = {4: torch.int32, 2: torch.int16}[computed.dtype.itemsize]
    lowest = torch.iinfo(kind).min

    def ordered(tensor: Tensor) -> Tensor:
        bits = tensor.contiguous().view(kind).long()
        return torch.where(bits < 0, lowest - bits, bits)

    return int((ordered(computed) - ordered(expected)).abs().max())
