"""The kernels in Triton, interpreted on the CPU: what torch's operations compute, in every shape that graphs have.

They are skipped where Triton is not installed, which torch brings with its builds for GPUs alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nightly import nightly_except
from torch import Tensor

from specbench_kit.models.executors.kernels import by_torch
from specbench_kit.models.executors.kernels.base import LayerKernels

pytest.importorskip("triton", reason="Triton is not installed")

from interpreted_kernels import mend, numbers, ulps

from specbench_kit.models.executors.kernels import by_triton

INTERPRETED = LayerKernels(
    "triton",
    by_triton.norm,
    by_triton.add_norm,
    by_triton.rotate,
    by_torch.attention,
    by_triton.gate,
)
"""Attentions have tests of their own."""
DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 1), (64, 1), (3, 5), (1, 88)]
"""Rows and columns of forwards."""
ULPS_IN_FP32 = 4
"""The most units in the last place by which sums in another order, and exponentials, differ; in bf16 none do."""


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    mend(monkeypatch)


def most_ulps(dtype: torch.dtype) -> int:
    return ULPS_IN_FP32 if dtype == torch.float32 else 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 33, 64, 1000])
def test_norms(dtype: torch.dtype, width: int) -> None:
    hidden, added = (numbers(dtype, 2, 3, width, seed=seed) for seed in (0, 1))
    weight = numbers(dtype, width, seed=2)
    normed = INTERPRETED.norm(hidden, weight, 1e-6)
    assert ulps(normed, by_torch.norm(hidden, weight, 1e-6)) <= most_ulps(dtype)
    total, normed = INTERPRETED.add_norm(hidden, added, weight, 1e-6)
    assert torch.equal(total, hidden + added), "a single rounding leaves nothing to differ in"
    assert ulps(normed, by_torch.norm(total, weight, 1e-6)) <= most_ulps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 45, 1100])
def test_gates(dtype: torch.dtype, width: int) -> None:
    """Of two blocks too, the second one with a tail."""
    gates = 3 * numbers(dtype, 2, 3, 2 * width)
    assert ulps(INTERPRETED.gate(gates), by_torch.gate(gates)) <= most_ulps(dtype)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "dim", "has_norms"),
    [
        (torch.float32, 4, 2, 16, False),  # Llama, and Qwen2 whose bias the product adds
        (torch.bfloat16, 4, 2, 8, True),  # Qwen3
        (torch.bfloat16, 9, 1, 10, False),  # more heads than a program has, and half a head of 5
    ],
)
def test_rotations_into_a_store(
    rows: int, width: int, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, has_norms: bool
) -> None:
    """Bit by bit, in slots in any order, with padded columns that all go to the last cell."""
    if heads == 9 and rows * width > 20:
        pytest.skip("the other models are tried in this shape, which takes long")
    computed, expected = (
        rotated(kernels, rows, width, dtype, heads, kv_heads, dim, has_norms)
        for kernels in (INTERPRETED, by_torch.TORCH)
    )
    for ours, torchs in zip(computed, expected, strict=True):
        assert ours.abs().sum() > 0
        assert torch.equal(ours, torchs)


def rotated(
    kernels: LayerKernels,
    rows: int,
    width: int,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    has_norms: bool,
) -> list[Tensor]:
    """Return queries, new keys, and the store without its last cell, to which padding goes in any order."""
    generator = torch.Generator().manual_seed(0)
    capacity = width + 9
    projected = numbers(dtype, rows, width, heads + 2 * kv_heads, dim)
    angles = torch.randn((rows, width, dim), generator=generator)
    norms = numbers(dtype, heads + kv_heads, dim, seed=3) if has_norms else None
    slots = torch.randperm(rows + 2, generator=generator)[:rows, None]
    # Cells are a part of a wider table, as in the inputs of graphs.
    table = torch.stack(
        [torch.randperm(capacity - 1, generator=generator)[: 2 * width] for _ in range(rows)]
    )
    cells = table[:, :width].clone() if width > 9 else table[:, -width:]
    cells[:, width - width // 4 :] = capacity - 1
    shape = (2, rows + 2, kv_heads, capacity, dim)
    keys, values = torch.zeros(shape, dtype=dtype).unbind()
    found = kernels.rotate(
        projected,
        angles.cos().to(dtype),
        angles.sin().to(dtype),
        norms,
        1e-6,
        heads,
        keys,
        values,
        slots,
        cells,
    )
    return [*found, keys[..., :-1, :], values[..., :-1, :]]


def test_rotations_without_a_store_and_with_norms_in_fp32() -> None:
    """Differences of normed numbers lose digits, so that the bound is in digits of the largest number."""
    heads, kv_heads, dim = 4, 2, 16
    projected = numbers(torch.float32, 2, 3, heads + 2 * kv_heads, dim)
    angles = numbers(torch.float32, 2, 3, dim, seed=1)
    norms = numbers(torch.float32, heads + kv_heads, dim, seed=2)
    for ours, torchs in zip(
        *(
            kernels.rotate(
                projected, angles.cos(), angles.sin(), norms, 1e-6, heads, None, None, None, None
            )
            for kernels in (INTERPRETED, by_torch.TORCH)
        ),
        strict=True,
    ):
        digits = torch.finfo(torch.float32).eps * torchs.abs().max()
        assert (ours - torchs).abs().max() <= ULPS_IN_FP32 * digits


@pytest.mark.slow
@pytest.mark.parametrize("capability", nightly_except([90], [80, 90]))
def test_they_compile_for_cards(capability: int) -> None:
    """Down to the code of an A100 and an H100, which no GPU is needed for."""
    script = Path(__file__).parents[1] / "compiled_kernels.py"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, script, str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sizes = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert len(sizes) == 19
    assert min(sizes) > 1000, "each is code"
