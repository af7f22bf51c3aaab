"""Training as the head will draft: from the second step on, its own states replace those of the target."""

from collections.abc import Iterator

import torch
from torch import Tensor

from specbench_kit.models.heads.model import HeadModel


def unroll(head: HeadModel, tokens: Tensor, fused: Tensor, steps: int, first: int = 0) -> Iterator[Tensor]:
    """Yield the head's states [texts, rows - first - j, hidden] of each draft step j.

    This is the training-time test of EAGLE-3 (Li et al. 2025, section 3). Row i stands for the token at i + 1 of
    `tokens` [texts, rows + 1] and predicts the token at i + 2. In the first step it reads the target's fused features
    of the token at i, `fused` [texts, rows, hidden]; in step j it reads the state of row i - 1 in step j - 1, as if
    drafting had begun j tokens earlier. Step j yields the rows from first + j on.
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
        keys.append(_repeat_heads(key, query))
        values.append(_repeat_heads(value, query))
        state = layer.leave(residual, _attend(query, keys, values))
        # The first step computes all rows, since later steps attend to its keys and values.
        state = state[:, first:] if step == 0 else state
        yield state
        state, begin = state[:, :-1], first + step + 1


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend as in drafting: row i of step j sees the first step's rows up to i - j, and its own chain after that.

    The chain is one row of each later step, so that these scores are dot products and no matrix products.
    """
    step, rows, all_rows = len(keys) - 1, query.shape[2], keys[0].shape[2]
    query = query * query.shape[-1] ** -0.5
    # The first query row has position all_rows - rows, and its chain began `step` rows before.
    hidden = torch.ones(rows, all_rows, dtype=torch.bool, device=query.device).triu(all_rows - rows - step + 1)
    scores = [(query @ keys[0].transpose(-1, -2)).masked_fill(hidden, -torch.inf)]
    scores += [(query * key[:, :, :rows]).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.cat(scores, -1).float().softmax(-1).to(query.dtype)
    mixed = weights[..., :all_rows] @ values[0]
    for column, value in enumerate(values[1:], all_rows):
        mixed = mixed + weights[..., column, None] * value[:, :, :rows]
    return mixed


def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Return keys or values repeated so that there is one head per query head."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)
