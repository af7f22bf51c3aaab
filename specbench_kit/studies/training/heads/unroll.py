"""Drafting as it will be, in training: the head's own states take the place of the target's, step after step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from specbench_kit.models.heads.model import HeadModel


def unroll(head: HeadModel, tokens: Tensor, fused: Tensor, steps: int, first: int = 0) -> Iterator[Tensor]:
    """States [texts, rows - first - j, hidden] of step j (training-time test, EAGLE-3, Li et al. 2025, section 3).

    Row i stands for the token at i + 1 of `tokens` [texts, rows + 1], and is to predict the one at i + 2. In the first
    step it reads what the target made of the token at i, `fused` [texts, rows, hidden]; in step j what row i - 1 gave
    in step j - 1, as if drafting had begun j tokens before. Step j gives rows from first + j on.
    """
    layer, attention = head.layer, head.layer.self_attn
    rows = fused.shape[1]
    embedded = head.embed_tokens(tokens[:, 1 : rows + 1])
    cosines, sines = head.rotary_emb(fused, torch.arange(rows, device=fused.device)[None])
    keys, values = list[Tensor](), list[Tensor]()
    state, begin = fused, 0
    for step in range(steps):
        read, residual = layer.enter(embedded[:, begin:], state)
        query, key, value = attention.project(read, (cosines[:, begin:], sines[:, begin:]))
        keys.append(_shared(key, query))
        values.append(_shared(value, query))
        state = layer.leave(residual, _attend(query, keys, values))
        state = state[:, first:] if step == 0 else state
        yield state
        state, begin = state[:, :-1], first + step + 1


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Row i of step j sees the first step's rows up to i - j, and of each step after it the row of its own chain."""
    step, rows, all_rows = len(keys) - 1, query.shape[2], keys[0].shape[2]
    query = query * query.shape[-1] ** -0.5
    # The first of these rows stands at all_rows - rows, and began `step` rows before.
    beyond = torch.ones(rows, all_rows, dtype=torch.bool, device=query.device).triu(all_rows - rows - step + 1)
    scores = [(query @ keys[0].transpose(-1, -2)).masked_fill(beyond, -torch.inf)]
    scores += [(query * key[:, :, :rows]).sum(-1, keepdim=True) for key in keys[1:]]
    shares = torch.cat(scores, -1).float().softmax(-1).to(query.dtype)
    mixed = shares[..., :all_rows] @ values[0]
    for place, value in enumerate(values[1:], all_rows):
        mixed = mixed + shares[..., place, None] * value[:, :, :rows]
    return mixed


def _shared(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values, once for each head of queries."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)
