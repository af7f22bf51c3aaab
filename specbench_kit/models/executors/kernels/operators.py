"""The Triton kernels as operators of torch, which other devices compute by torch's operations.

An operator is one launch to whoever looks at torch's operations from outside, as the kernel is one
on a GPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench_kit.models.executors.kernels import by_torch
from specbench_kit.models.executors.kernels.base import LayerKernels


def _operator(
    name: str, otherwise: Callable[..., Any], written: Sequence[str] = ()
) -> Callable[..., Any]:
    """Define an operator that launches the Triton kernel of that name, and does `otherwise` where
    there is no GPU.
    """
    whole_name = f"specbench_kit::{name}"
    schema = torch.library.infer_schema(otherwise, mutates_args=tuple(written))
    torch.library.define(whole_name, schema)
    torch.library.impl(whole_name, "cpu", otherwise)

    def launch(first: Tensor, *others: Any) -> Any:
        from specbench_kit.models.executors.kernels import by_triton

        # Triton launches on the current device, wherever the tensors are.
        with torch.cuda.device(first.device):
            return getattr(by_triton, name)(first, *others)

    torch.library.impl(whole_name, "cuda", launch)
    operator: Callable[..., Any] = getattr(torch.ops.specbench_kit, name).default
    return operator


def _rotate(
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
) -> tuple[Tensor, Tensor]:
    """Return results that share no memory, which an operator's may not."""
    queries, new_keys = by_torch.rotate(
        projected, cosines, sines, norms, epsilon, heads, keys, values, slots, cells
    )
    return queries, new_keys.clone(memory_format=torch.contiguous_format)


FUSED = LayerKernels(
    "triton",
    _operator("norm", by_torch.norm),
    _operator("add_norm", by_torch.add_norm),
    _operator("rotate", _rotate, written=("keys", "values")),
    _operator("gate", by_torch.gate),
)
