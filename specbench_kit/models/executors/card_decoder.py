"""A forward of Llama-like models in few kernels, which graphs of GPUs capture.

On an H100 a layer of Qwen3 in transformers' own code is some sixty kernels, most of which take
longer to start than to compute, and attention copies the KV of every head that shares it. Here it
is about twenty of torch's, or nine with Triton's, and KV is read where it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from specbench_kit.models.executors.kernels.base import Attention, LayerKernels, LayerSizes
from specbench_kit.models.executors.kernels.by_torch import TORCH, MaskedAttention
from specbench_kit.models.executors.kernels.compact_mask import CompactMask
from specbench_kit.models.executors.kv import KV
from specbench_kit.models.executors.native_weights import LLAMA_LIKE, has_plain_layers


def is_computable(model: Any) -> bool:
    """Return whether `CardDecoder` computes what the model does: a Llama-like one with plain
    products.
    """
    quantised = getattr(model.config, "quantization_config", None) is not None
    if quantised or model.config.model_type not in LLAMA_LIKE or not has_plain_layers(model):
        return False
    layers = [module for module in model.model.layers.modules() if hasattr(module, "weight")]
    plain = all(
        type(module) is nn.Linear or type(module).__name__.endswith("RMSNorm") for module in layers
    )
    return plain and not any(hasattr(module, "_hf_hook") for module in model.modules())


def sizes_of(model: Any) -> LayerSizes:
    """Return what the layers of a model that `CardDecoder` computes measure."""
    layer = model.model.layers[0]
    attention, gates = layer.self_attn, layer.mlp.gate_proj
    dim = int(attention.head_dim)
    return LayerSizes(
        gates.in_features,
        gates.out_features,
        attention.q_proj.out_features // dim,
        attention.k_proj.out_features // dim,
        dim,
        hasattr(attention, "q_norm"),
    )


class Turns(NamedTuple):
    """Cosines and sines of places, each [..., dim]; the first half of the sines is negated."""

    cosines: Tensor
    sines: Tensor


class Place(NamedTuple):
    """Where the KV of new tokens goes: the store of a layer, and the tokens' slots and cells."""

    keys: Tensor
    values: Tensor
    slots: Tensor
    cells: Tensor


class PlacedKV(ABC):
    """KV that a kernel writes itself, to places which are known on the card."""

    @abstractmethod
    def place(self, layer: int) -> Place:
        """Return where the KV of a layer goes."""

    @abstractmethod
    def attended(self, layer: int, new_keys: Tensor, new_values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that new tokens attend to, once their own were written."""


class CardDecoder:
    """Computes logits and hidden states of a model whose weights it reads; see `is_computable`."""

    def __init__(self, model: Any, kernels: LayerKernels = TORCH) -> None:
        decoder = model.model
        self._kernels = kernels
        self._embedding = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self._layers = [_Layer(layer, kernels) for layer in decoder.layers]
        self._norms = [layer.input_layernorm for layer in decoder.layers] + [decoder.norm]
        """The norm before every layer, and the one after the last."""
        sizes = sizes_of(model)
        self._group = sizes.heads // sizes.kv_heads
        self._output = model.lm_head

    def __call__(
        self,
        tokens: Tensor,
        places: Tensor,
        mask: CompactMask | Tensor,
        kv: KV | PlacedKV,
        layers: Sequence[int] = (),
        first: int = 0,
        last: Tensor | None = None,
        turns: Turns | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return logits [rows, width - first, vocabulary], and hidden states by layer, numbered as
        transformers does.

        `mask` may also be a table that is added to the products of queries and keys.

        `first` is the first token whose logits are needed; with `last` [rows] those of one token of each row are
        computed, [rows, 1, vocabulary]. `turns` are those of all places there may be, if they are
        known.
        """
        hidden = embedding(tokens, self._embedding)
        if turns is None:
            cosines, sines = self.turns_at(places)
        else:
            cosines, sines = (embedding(places, table) for table in turns)
        attend = (
            self._kernels.attention(mask, self._group, hidden.dtype)
            if isinstance(mask, CompactMask)
            else MaskedAttention(mask, self._group)
        )
        states = {0: hidden}
        normed = self._kernels.norm(hidden, *_parameters(self._norms[0]))
        for index, layer in enumerate(self._layers):
            hidden, change = layer(hidden, normed, cosines, sines, attend, kv, index)
            # What a layer adds is added by the norm that follows.
            hidden, normed = self._kernels.add_norm(
                hidden, change, *_parameters(self._norms[index + 1])
            )
            if index + 1 in layers:
                states[index + 1] = hidden
        states[len(self._layers)] = normed
        kept = normed[:, first:]
        if last is not None:
            kept = normed.gather(1, last[:, None, None].expand(-1, -1, normed.shape[-1]))
        return self._output(kept), {layer: states[layer] for layer in layers}

    def turns_of(self, places: Tensor) -> Turns:
        """Return by how much heads are rotated at each of some places [count]."""
        cosines, sines = self.turns_at(places[None])
        return Turns(cosines[0], sines[0])

    def turns_at(self, places: Tensor) -> Turns:
        """Return by how much heads are rotated at places [rows, width]."""
        cosines, sines = self._rotary(self._embedding, places)
        half = sines.shape[-1] // 2
        # Rotation adds the other half of a head times the sine, of which the first half is
        # subtracted.
        return Turns(cosines, torch.cat((-sines[..., :half], sines[..., half:]), -1))


class _Layer:
    """One layer, with the weights of products that read the same numbers side by side."""

    def __init__(self, layer: Any, kernels: LayerKernels) -> None:
        attention = layer.self_attn
        self._kernels = kernels
        self._attention = attention
        self._mlp = layer.mlp
        self._before_mlp = layer.post_attention_layernorm
        self._dim = int(attention.head_dim)
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._heads = attention.q_proj.out_features // self._dim
        self._projections = side_by_side(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gates = side_by_side(layer.mlp.gate_proj, layer.mlp.up_proj)
        self._norms = None
        self._epsilon = 0.0
        if hasattr(attention, "q_norm"):
            self._epsilon = float(attention.q_norm.variance_epsilon)
            weights = (
                attention.q_norm.weight.expand(self._heads, -1),
                attention.k_norm.weight.expand(self._kv_heads, -1),
            )
            self._norms = torch.cat(weights).detach()

    def __call__(
        self,
        hidden: Tensor,
        normed: Tensor,
        cosines: Tensor,
        sines: Tensor,
        attend: Attention,
        kv: KV | PlacedKV,
        index: int,
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states [rows, width, hidden] after attention, and what is added to them
        then.
        """
        attended = self._attend(normed, cosines, sines, attend, kv, index)
        hidden, normed = self._kernels.add_norm(hidden, attended, *_parameters(self._before_mlp))
        gates = linear(normed, *self._gates)
        return hidden, self._mlp.down_proj(self._kernels.gate(gates))

    def _attend(
        self,
        normed: Tensor,
        cosines: Tensor,
        sines: Tensor,
        attend: Attention,
        kv: KV | PlacedKV,
        index: int,
    ) -> Tensor:
        rows, width, _ = normed.shape
        heads, kv_heads, dim = self._heads, self._kv_heads, self._dim
        projected = linear(normed, *self._projections).view(rows, width, heads + 2 * kv_heads, dim)
        new_values = projected[:, :, heads + kv_heads :].transpose(1, 2)
        rotated = (projected, cosines, sines, self._norms, self._epsilon, heads)
        if isinstance(kv, PlacedKV):
            queries, new_keys = self._kernels.rotate(*rotated, *kv.place(index))
            keys, values = kv.attended(index, new_keys, new_values)
        else:
            queries, new_keys = self._kernels.rotate(*rotated, None, None, None, None)
            keys, values = kv.update(new_keys, new_values, index)
        found = attend(queries, keys, values, self._attention.scaling)
        output: Tensor = self._attention.o_proj(found)
        return output


def _parameters(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, float(norm.variance_epsilon)


_merged: WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor | None]] = WeakKeyDictionary()
"""Weights that lie side by side already, by the first module that has a part of them."""


def side_by_side(*products: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of products of the same numbers as those of one product, which they
    share from now on.

    The modules keep working: their weights become parts of the one, so that memory is needed for
    one layer more.
    """
    found = _merged.get(products[0])
    if found is not None and products[0].weight.data_ptr() == found[0].data_ptr():
        return found
    sizes = [product.out_features for product in products]
    parts = {}
    for name in ("weight", "bias"):
        if getattr(products[0], name) is not None:
            parts[name] = torch.cat([getattr(product, name).detach() for product in products])
    for name, whole in parts.items():
        for product, part in zip(products, whole.split(sizes), strict=True):
            getattr(product, name).data = part
    merged = _merged[products[0]] = parts["weight"], parts.get("bias")
    return merged
