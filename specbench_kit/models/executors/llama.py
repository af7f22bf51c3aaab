"""Llama-architecture models in fp32 on CPU: few operations, packed weights, no module overhead."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from specbench_kit.models.drafts.reduced import is_reduced
from specbench_kit.models.executors.base import executors
from specbench_kit.models.executors.kv import BAND, LayerKV
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor

PACKED_FOR_ROWS = 8
"""The batch size that the weight layout is chosen for; it is fast for one row and for verifying a
dozen.
"""


class _Linear:
    """A bias-free linear layer with its weight [out, in] in oneDNN's own layout."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        return cast(
            Tensor, torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], None)
        )

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + linear(x)."""
        return cast(
            Tensor,
            torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, None, "add"),
        )


class _Normalise:
    """RMS normalisation without its weight and its sqrt(width), which the next linear layer has
    absorbed.
    """

    def __init__(self, width: int, eps: float) -> None:
        self._floor = torch.tensor((width * eps) ** 0.5)
        self._scale: float = width**0.5

    def absorb(self, norm_weight: Tensor, weight: Tensor) -> Tensor:
        """Return the weight [out, in] of a layer that follows a norm, with the norm's weight
        multiplied in.
        """
        return weight * norm_weight * self._scale

    def __call__(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot(self._floor)


class _Layer:
    """One decoder layer: query, key and value in one matrix, gate and up in another."""

    def __init__(self, layer: Any, normalise: _Normalise, pairs: Tensor) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        queries, keys = (_interleave(m.weight, pairs) for m in (attention.q_proj, attention.k_proj))
        qkv = torch.cat((queries, keys, attention.v_proj.weight))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        self.qkv = _Linear(normalise.absorb(layer.input_layernorm.weight, qkv))
        self.gate_up = _Linear(normalise.absorb(layer.post_attention_layernorm.weight, gate_up))
        self.out = _Linear(attention.o_proj.weight)
        self.down = _Linear(mlp.down_proj.weight)


def _interleave(weight: Tensor, pairs: Tensor) -> Tensor:
    """Reorder every head's rows so that the two numbers that rotate together are neighbours."""
    return weight.view(-1, len(pairs), weight.shape[1])[:, pairs].flatten(0, 1)


@executors.register("llama-cpu")
class LlamaExecutor(PaddedExecutor):
    """Runs Llama models in float32 on a CPU; the two numbers that RoPE rotates together are
    adjacent in cached keys.
    """

    priority = 1

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        config = model.config
        decoder = model.model
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = decoder.layers[0].self_attn.head_dim
        half = self.head_dim // 2
        pairs = torch.arange(self.head_dim).view(2, half).t().flatten()
        self.normalise = _Normalise(config.hidden_size, config.rms_norm_eps)
        self.layers = [_Layer(layer, self.normalise, pairs) for layer in decoder.layers]
        self.embedding = decoder.embed_tokens.weight
        self.head = _Linear(self.normalise.absorb(decoder.norm.weight, model.lm_head.weight))
        self.last_norm = decoder.norm
        positions = torch.arange(config.max_position_embeddings + BAND)[None]
        cos, sin = decoder.rotary_emb(self.embedding, positions)
        self.rotations = torch.complex(cos[0, :, :half], sin[0, :, :half])
        super().__init__(model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        config = model.config
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type in {"llama", "mistral"}
            and not is_reduced(model)
            and model.device.type == "cpu"
            and model.dtype == torch.float32
            and torch.backends.mkldnn.is_available()
            and config.hidden_act == "silu"
            and getattr(config, "sliding_window", None) is None
            and not getattr(config, "attention_bias", False)
            and not getattr(config, "mlp_bias", False)
            and rope.get("rope_type", "default") in {"default", "linear", "llama3"}
        )

    @property
    def kv_layers(self) -> list[LayerKV]:
        return [LayerKV(self.kv_heads, self.head_dim, self.head_dim)] * len(self.layers)

    def compute(self, batch: ForwardInput) -> Computed:
        rows, width = batch.tokens.shape
        states: dict[int, Tensor] = {}
        hidden = embedding(batch.tokens, self.embedding).view(rows * width, -1)
        rotation = self.rotations[batch.positions][:, :, None]
        for index, layer in enumerate(self.layers):
            if index in batch.layers:
                states[index] = hidden.view(rows, width, -1)[:, batch.first :].clone()
            hidden = layer.out.add_to(hidden, self._attend(hidden, index, layer, rotation, batch))
            gate, up = layer.gate_up(self.normalise(hidden)).chunk(2, -1)
            hidden = layer.down.add_to(hidden, silu(gate).mul_(up))
        last = hidden.view(rows, width, -1)[:, batch.first :]
        if len(self.layers) in batch.layers:
            states[len(self.layers)] = self.last_norm(last)
        return Computed(self.head(self.normalise(last)), states)

    def _attend(
        self, hidden: Tensor, index: int, layer: _Layer, rotation: Tensor, batch: ForwardInput
    ) -> Tensor:
        """Rotate, store and attend; return the heads' outputs [rows * width, heads * head_dim]."""
        rows, width = batch.tokens.shape
        rotating = self.heads + self.kv_heads
        qkv = layer.qkv(self.normalise(hidden)).view(
            rows, width, rotating + self.kv_heads, self.head_dim
        )
        pairs = torch.view_as_complex(qkv[:, :, :rotating].view(rows, width, rotating, -1, 2))
        pairs.mul_(rotation)
        new = qkv[:, :, self.heads :].view(rows, width, 2, self.kv_heads, self.head_dim)
        batch.kv.write(index, *new.permute(2, 0, 3, 1, 4))
        keys, values = batch.kv.read(index, hidden.device)
        queries = qkv[:, :, : self.heads].transpose(1, 2)
        grouped = self.heads != self.kv_heads
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=batch.mask, enable_gqa=grouped
        )
        return mixed.transpose(1, 2).reshape(rows * width, -1)
