"""The Triton kernels as operators of torch, which other devices compute by torch's operations.

An operator is one launch to whoever looks at torch's operations from outside, as the kernel is one
on a GPU.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from specbench_kit.models.executors.kernels import by_torch
from specbench_kit.models.executors.kernels.base import MOST_IN_PARTS, PART, LayerKernels
from specbench_kit.models.executors.kernels.compact_mask import CompactMask, additive
from specbench_kit.models.executors.kernels.description import (
    FIELDS,
    TOP,
    Description,
    Details,
    candidates,
)


def _operator(
    name: str,
    otherwise: Callable[..., Any],
    written: Sequence[str] = (),
    module: str = "by_triton",
) -> Callable[..., Any]:
    """Define an operator that launches the Triton kernel of that name in a module, and does
    `otherwise` where there is no GPU.
    """
    whole_name = f"specbench_kit::{name}"
    schema = torch.library.infer_schema(otherwise, mutates_args=tuple(written))
    torch.library.define(whole_name, schema)
    torch.library.impl(whole_name, "cpu", otherwise)

    def launch(first: Tensor, *others: Any) -> Any:
        # Triton launches on the current device, wherever the tensors are.
        with torch.cuda.device(first.device):
            return getattr(import_module(f"{__package__}.{module}"), name)(first, *others)

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


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    _cells: Tensor,
    _trash: int,
    prefixes: Tensor | None,
    nodes: Tensor | None,
    scale: float,
) -> Tensor:
    """Return the attention [rows, width, heads * dim]; see `CompactMask` for what it is told."""
    numbers = torch.arange(keys.shape[2], device=keys.device)
    table = additive(numbers, last, prefixes, nodes, queries.dtype)
    group = queries.shape[2] // last.shape[1]
    return by_torch.MaskedAttention(table, group)(queries, keys, values, scale)


def _attend_in_parts(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    last: Tensor,
    _cells: Tensor,
    _trash: int,
    prefixes: Tensor | None,
    nodes: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return what is found in each part of the keys, [rows, width, heads, parts, dim], and the
    weight of that, [rows, width, heads, parts, 2]: the largest exponent, and the sum of
    exponentials of what is below it.

    Without a GPU all keys are one part.
    """
    rows, _, _, dim = queries.shape
    found = _attend(queries, keys, values, last, _cells, _trash, prefixes, nodes, scale)
    found = found.float().view(rows, last.shape[1], -1, 1, dim)
    weights = torch.tensor([0.0, 1.0], device=found.device)
    return found, weights.expand(*found.shape[:-1], 2).contiguous()


def _join_parts(
    found: Tensor, weights: Tensor, _cells: Tensor, _trash: int, like: Tensor
) -> Tensor:
    """Return the attention [rows, width, heads * dim] from its parts, in a data type like that of
    another tensor.
    """
    shares = (weights[..., 0] - weights[..., 0].amax(-1, keepdim=True)).exp2()[..., None]
    whole = (found * shares).sum(-2) / (weights[..., 1:] * shares).sum(-2)
    return whole.flatten(2).to(like.dtype)


_ATTEND = _operator("attend", _attend, module="triton_attention")
_ATTEND_IN_PARTS = _operator("attend_in_parts", _attend_in_parts, module="triton_attention")
_JOIN_PARTS = _operator("join_parts", _join_parts, module="triton_attention")


class _FusedAttention:
    """Attention that reads the keys which somebody attends to, and no table of them."""

    def __init__(self, mask: CompactMask) -> None:
        self._cells = mask.cells, mask.trash
        self._seen = mask.last, *self._cells, mask.prefixes, mask.nodes
        self._in_parts = len(mask.keys) > PART and mask.last.shape[1] <= MOST_IN_PARTS

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        found: Tensor
        if self._in_parts:
            parts = _ATTEND_IN_PARTS(queries, keys, values, *self._seen, scale)
            found = _JOIN_PARTS(*parts, *self._cells, queries)
        else:
            found = _ATTEND(queries, keys, values, *self._seen, scale)
        return found


def _attention(mask: CompactMask, _group: int, _dtype: torch.dtype) -> _FusedAttention:
    return _FusedAttention(mask)


FUSED = LayerKernels(
    "triton",
    _operator("norm", by_torch.norm),
    _operator("add_norm", by_torch.add_norm),
    _operator("rotate", _rotate, written=("keys", "values")),
    _attention,
    _operator("gate", by_torch.gate),
)


def _summarise(logits: Tensor, temperature: float) -> Tensor:
    """Return what there is to say of each chunk of logits [..., vocabulary], [..., chunks, 8].

    It is the largest logit, its token and the second largest; the sum of exponentials of logits
    below the largest, divided by the temperature, and the sum of these exponentials times what they
    are of; the mean of the logits and the sum of squares of their distances from it; and whether
    one is NaN. Without a GPU all logits are one chunk.
    """
    logits = logits.float()
    is_nan = logits.isnan()
    logits = logits.masked_fill(is_nan, -torch.inf)
    best = logits.topk(2)
    exponents = (logits - best.values[..., :1]) / temperature
    shares = exponents.exp()
    mean = logits.mean(-1)
    return torch.stack(
        (
            best.values[..., 0],
            logits.argmax(-1).float(),
            best.values[..., 1],
            shares.sum(-1),
            (shares * exponents).nan_to_num(0.0).sum(-1),
            mean,
            (logits - mean[..., None]).square().sum(-1),
            is_nan.any(-1).float(),
        ),
        -1,
    )[..., None, :]


def _join_summaries(
    found: Tensor, tokens: Tensor, vocabulary: int, temperature: float, statistics: bool
) -> tuple[Tensor, Tensor]:
    """Return the fields of tokens [...] from a summary of one chunk each, as `description` has
    them, and the most likely next tokens.
    """
    _, best, second, total, weighted, _, squares, is_nan = found[..., 0, :].unbind(-1)
    largest = found[..., 0, 0]
    known = torch.stack((best.double(), is_nan.double(), tokens.double()), -1)
    if not statistics:
        return known, best.long()
    further = (
        1 / total,
        total.log() - weighted / total,
        (1 - ((second - largest) / temperature).exp()) / total,
        (squares / vocabulary).sqrt(),
    )
    bad = is_nan.masked_fill(is_nan > 0, torch.nan)[..., None]
    return torch.cat((known, (torch.stack(further, -1) + bad).double()), -1), best.long()


_SUMMARISE = _operator("summarise", _summarise, module="triton_logits")
_JOIN_SUMMARIES = _operator("join_summaries", _join_summaries, module="triton_logits")


def describe_fused(logits: Tensor, tokens: Tensor, details: Details) -> Description:
    """Describe distributions by kernels that read logits once; candidates by one more look."""
    temperature = details.temperature or 1.0
    has_statistics = details.temperature > 0
    found = _SUMMARISE(logits, temperature)
    fields, best = _JOIN_SUMMARIES(found, tokens, logits.shape[-1], temperature, has_statistics)
    if details.candidates:
        top = logits.topk(min(TOP, logits.shape[-1]))
        below = (top.values - top.values[..., :1]).float() / temperature
        scores = below + fields[..., FIELDS : FIELDS + 1].log().float()
        fields = torch.cat((fields, candidates(scores, top.indices)), -1)
    return Description(fields, best)
