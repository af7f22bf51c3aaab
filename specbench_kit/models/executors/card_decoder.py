"""The forward of Llama-like models in few kernels: what CUDA graphs of them capture.

On an H100 a layer of Qwen3 in transformers' own code is some sixty kernels, most of which take longer to start than to
compute, and attention copies the KV of every head that shares it. Here it is about twenty, and KV is read where it is.
"""

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from specbench_kit.models.executors.native_weights import LLAMA_LIKE, has_plain_layers


class KV(Protocol):
    """Keeps the keys and values of new tokens, as a cache of transformers does."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Store [rows, heads, width, dim] of one layer; return all keys and values, [rows, heads, length, dim]."""


def is_computable(model: Any) -> bool:
    """Return whether `CardDecoder` computes what the model does: a Llama-like one with plain products."""
    quantised = getattr(model.config, "quantization_config", None) is not None
    if quantised or model.config.model_type not in LLAMA_LIKE or not has_plain_layers(model):
        return False
    layers = [module for module in model.model.layers.modules() if hasattr(module, "weight")]
    plain = all(type(module) is nn.Linear or type(module).__name__.endswith("RMSNorm") for module in layers)
    return plain and not any(hasattr(module, "_hf_hook") for module in model.modules())


class CardDecoder:
    """Computes logits and hidden states of a model whose weights it reads; see `is_computable`."""

    def __init__(self, model: Any) -> None:
        decoder = model.model
        self._config = model.config.get_text_config()
        self._embedding = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self._layers = [_Layer(layer) for layer in decoder.layers]
        self._norm = decoder.norm
        self._output = model.lm_head

    def __call__(
        self, tokens: Tensor, places: Tensor, mask: Tensor, kv: KV, layers: Sequence[int] = (), first: int = 0
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return logits [rows, width - first, vocabulary], and hidden states by layer, numbered as transformers does.

        `first` is the first token whose logits are needed.
        """
        hidden = embedding(tokens, self._embedding)
        cosines, sines = (table[:, :, None] for table in self._rotary(hidden, places))
        half = sines.shape[-1] // 2
        # Rotation adds the other half of a head times the sine, of which the first half is subtracted.
        signed = torch.cat((-sines[..., :half], sines[..., half:]), -1)
        group = self._config.num_attention_heads // self._config.num_key_value_heads
        rows, _, width, length = mask.shape
        grouped = mask[:, :, None].expand(rows, 1, group, width, length).reshape(rows, 1, group * width, length)
        states = {0: hidden}
        for index, layer in enumerate(self._layers):
            hidden = layer(hidden, cosines, signed, grouped, kv, index)
            if index + 1 in layers:
                states[index + 1] = hidden
        hidden = states[len(self._layers)] = _normed(hidden, self._norm)
        return self._output(hidden[:, first:]), {layer: states[layer] for layer in layers}


class _Layer:
    """One layer, with the weights of products that read the same numbers side by side."""

    def __init__(self, layer: Any) -> None:
        attention = layer.self_attn
        self._attention = attention
        self._mlp = layer.mlp
        self._before_attention = layer.input_layernorm
        self._before_mlp = layer.post_attention_layernorm
        self._dim = int(attention.head_dim)
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._heads = attention.q_proj.out_features // self._dim
        self._projections = side_by_side(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gates = side_by_side(layer.mlp.gate_proj, layer.mlp.up_proj)
        self._norms = None
        if hasattr(attention, "q_norm"):
            self._epsilon = float(attention.q_norm.variance_epsilon)
            weights = (
                attention.q_norm.weight.expand(self._heads, -1),
                attention.k_norm.weight.expand(self._kv_heads, -1),
            )
            self._norms = torch.cat(weights).detach()

    def __call__(self, hidden: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor, kv: KV, index: int) -> Tensor:
        hidden = hidden + self._attend(_normed(hidden, self._before_attention), cosines, sines, mask, kv, index)
        gate, up = linear(_normed(hidden, self._before_mlp), *self._gates).chunk(2, -1)
        combined: Tensor = self._mlp.down_proj(silu(gate) * up)
        return hidden + combined

    def _attend(self, hidden: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor, kv: KV, index: int) -> Tensor:
        rows, width, _ = hidden.shape
        heads, kv_heads, dim = self._heads, self._kv_heads, self._dim
        projected = linear(hidden, *self._projections).view(rows, width, heads + 2 * kv_heads, dim)
        turned, new_values = projected[:, :, : heads + kv_heads], projected[:, :, heads + kv_heads :]
        if self._norms is not None:
            turned = rms_norm(turned, (dim,), eps=self._epsilon) * self._norms
        turned = turned * cosines + turned.roll(dim // 2, -1) * sines
        queries, new_keys = turned[:, :, :heads], turned[:, :, heads:]
        keys, values = kv.update(new_keys.transpose(1, 2), new_values.transpose(1, 2), index)
        # Heads that share keys stand one below the other as if they were further tokens, so that no KV is copied.
        queries = queries.view(rows, width, kv_heads, -1, dim).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, dim)
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self._attention.scaling)
        found = found.view(rows, kv_heads, -1, width, dim).permute(0, 3, 1, 2, 4).reshape(rows, width, heads * dim)
        output: Tensor = self._attention.o_proj(found)
        return output


def _normed(hidden: Tensor, norm: Any) -> Tensor:
    return rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


_merged: WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor | None]] = WeakKeyDictionary()
"""Weights that lie side by side already, by the first module that has a part of them."""


def side_by_side(*products: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of products of the same numbers as those of one product, which they share from now on.

    The modules keep working: their weights become parts of the one, so that memory is needed for one layer more.
    """
    found = _merged.get(products[0])
    if found is not None and products[0].weight.data_ptr() == found[0].data_ptr():
        return found
    sizes = [product.out_features for product in products]
    parts = {
        name: torch.cat([getattr(product, name).detach() for product in products])
        for name in ("weight", "bias")
        if getattr(products[0], name) is not None
    }
    for name, whole in parts.items():
        for product, part in zip(products, whole.split(sizes), strict=True):
            getattr(product, name).data = part
    merged = _merged[products[0]] = parts["weight"], parts.get("bias")
    return merged
