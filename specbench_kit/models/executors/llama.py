"""Llama-architecture models in fp32 on CPU: few, large operations and no module overhead."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from specbench_kit.models.executors.base import Executor, ForwardInput, executors
from specbench_kit.models.kv import KVShape


class _Layer:
    """One decoder layer: query, key and value in one matrix, gate and up in another, residuals added in place."""

    def __init__(self, layer: Any, order: Tensor) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm, self.eps = layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon
        queries, keys = (_interleave(m.weight, order) for m in (attention.q_proj, attention.k_proj))
        self.qkv = torch.cat((queries, keys, attention.v_proj.weight))
        self.out = attention.o_proj.weight.t()
        self.mlp_norm = layer.post_attention_layernorm.weight
        self.gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        self.down = mlp.down_proj.weight.t()


def _interleave(weight: Tensor, order: Tensor) -> Tensor:
    """Reorder every head's rows so that the two numbers that rotate together are neighbours."""
    return weight.view(-1, len(order), weight.shape[1])[:, order].flatten(0, 1)


@executors.register("llama-cpu")
class LlamaExecutor(Executor):
    """Equals the transformers forward up to rounding; the key cache holds rotated pairs as neighbours."""

    priority = 1

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = model.model.layers[0].self_attn.head_dim
        half = self.head_dim // 2
        order = torch.arange(self.head_dim).view(2, half).t().flatten()
        self.layers = [_Layer(layer, order) for layer in model.model.layers]
        self.embedding, self.head = model.model.embed_tokens.weight, model.lm_head.weight
        self.norm = model.model.norm.weight
        positions = torch.arange(config.max_position_embeddings)[None]
        cos, sin = model.model.rotary_emb(self.embedding, positions)
        self.rotations = torch.complex(cos[0, :, :half], sin[0, :, :half])

    @classmethod
    def supports(cls, model: Any) -> bool:
        config = model.config
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type in {"llama", "mistral"}
            and model.device.type == "cpu"
            and model.dtype == torch.float32
            and config.hidden_act == "silu"
            and getattr(config, "sliding_window", None) is None
            and not getattr(config, "attention_bias", False)
            and not getattr(config, "mlp_bias", False)
            and rope.get("rope_type", "default") in {"default", "linear", "llama3"}
        )

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(len(self.layers), self.kv_heads, self.head_dim)

    def forward(self, batch: ForwardInput) -> Tensor:
        rows, width = batch.tokens.shape
        hidden = embedding(batch.tokens, self.embedding).view(rows * width, -1)
        rotation = self.rotations[batch.positions][:, :, None]
        for index, layer in enumerate(self.layers):
            self._attend(hidden, index, layer, rotation, batch)
            gate, up = linear(rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, layer.eps), layer.gate_up).chunk(
                2, -1
            )
            hidden.addmm_(silu(gate).mul_(up), layer.down)
        last = hidden.view(rows, width, -1)[:, batch.first :]
        return linear(rms_norm(last, self.norm.shape, self.norm, self.layers[0].eps), self.head)

    def _attend(self, hidden: Tensor, index: int, layer: _Layer, rotation: Tensor, batch: ForwardInput) -> None:
        rows, width = batch.tokens.shape
        rotating = self.heads + self.kv_heads
        qkv = linear(rms_norm(hidden, layer.norm.shape, layer.norm, layer.eps), layer.qkv)
        qkv = qkv.view(rows, width, rotating + self.kv_heads, self.head_dim)
        turned = torch.view_as_complex(qkv[:, :, :rotating].view(rows, width, rotating, self.head_dim // 2, 2))
        turned.mul_(rotation)
        queries = qkv[:, :, : self.heads].transpose(1, 2)
        new = qkv[:, :, self.heads :].view(rows, width, 2, self.kv_heads, self.head_dim)
        batch.kv.write(index, new.permute(2, 0, 3, 1, 4))
        keys, values = batch.kv.read(index)
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=batch.mask, enable_gqa=self.heads != self.kv_heads
        )
        hidden.addmm_(mixed.transpose(1, 2).reshape(rows * width, -1), layer.out)
