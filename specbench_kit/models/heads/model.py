"""An EAGLE head in the manner of EAGLE-3 (Li et al. 2025): one layer over the target's states and
the next token.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from specbench_kit.models.heads.config import HeadConfig


class HeadAttention(nn.Module):
    """Attention over a token's embedding concatenated with the state before it; names follow the
    checkpoints.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        width = 2 * config.hidden_size
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [rows, heads, width, head_dim] of inputs [rows, width, 2
        hidden].
        """
        queries, keys, values = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return _rotate(queries, rotation), _rotate(keys, rotation), values

    def merge(self, mixed: Tensor) -> Tensor:
        """Project the heads' outputs [rows, heads, width, head_dim] to [rows, width, hidden]."""
        merged: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return merged


class HeadLayer(nn.Module):
    """The single decoder layer of a head."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        layer: Any = config.layer
        self.norm_first = config.norm_before_residual
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            LlamaRMSNorm(layer.hidden_size, eps=layer.rms_norm_eps) for _ in range(3)
        )
        self.self_attn = HeadAttention(layer)
        self.mlp = LlamaMLP(layer)

    def enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the attention, and the residual to which its output is added."""
        normed = self.hidden_norm(state)
        read = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        return read, normed if self.norm_first else state

    def leave(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output, given the residual and the attention's output."""
        state = residual + self.self_attn.merge(mixed)
        out: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out


class HeadModel(nn.Module):
    """Predicts the token after next from the target's hidden states of a token and the token that
    follows it.

    `d2t` holds, for each token of the head's reduced vocabulary, the offset to the target's token id.
    """

    d2t: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        layer: Any = config.layer
        self.config = config
        self.embed_tokens = nn.Embedding(layer.vocab_size, layer.hidden_size)
        self.fc = nn.Linear(3 * config.target_hidden_size, layer.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList([HeadLayer(config)])
        self.norm = LlamaRMSNorm(layer.hidden_size, eps=layer.rms_norm_eps)
        self.lm_head = nn.Linear(layer.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(layer)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.owns_embedding = True
        """True if the embedding differs from the target's."""

    @property
    def layer(self) -> HeadLayer:
        """Return the single layer."""
        (layer,) = self.layers
        assert isinstance(layer, HeadLayer)
        return layer

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def tokens(self) -> Tensor:
        """Return the target's token id of every token of the head's vocabulary."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def num_parameters(self) -> int:
        """Return the number of parameters, as models of transformers do."""
        return sum(weight.numel() for weight in self.parameters())


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate by cosines and sines [rows, width, head_dim]."""
    cosines = rotation[0][:, None]
    sines = rotation[1][:, None]
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attend and return [rows, heads, width, head_dim]; several heads of queries may share one head
    of keys.
    """
    grouped = queries.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=grouped)
