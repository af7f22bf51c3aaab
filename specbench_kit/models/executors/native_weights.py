"""Hands the weights of a Llama-like model to the compiled library, which copies them in its own
layout.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench_kit.models.executors.library import LayerWeights, Library, Shape
from specbench_kit.models.weights.stored import stored_tensor, weight_of

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The library's number of each kind of weights whose products are taken in fp32."""
ROWS_AT_ONCE = 4096
FIXED_ROPES = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on the position alone."""


LLAMA_LIKE = {"llama", "mistral", "qwen2", "qwen3"}


def is_llama_like(model: Any) -> bool:
    """Return whether the model is of a type that model.h computes."""
    return model.config.model_type in LLAMA_LIKE and computable(model)


def computable(model: Any) -> bool:
    """Return whether the model's layers do what model.h does, in sizes that it takes."""
    config = model.config.get_text_config()
    sizes = config.hidden_size, config.intermediate_size, head_dim_of(model)
    return has_plain_layers(model) and not any(size % 16 for size in sizes)


def has_plain_layers(model: Any) -> bool:
    """Return whether the model's layers do what those of Llama do."""
    config = model.config.get_text_config()
    attention = _decoder(model).layers[0].self_attn
    rope = getattr(config, "rope_parameters", None) or {}
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        config.hidden_act == "silu"
        and layers == {"full_attention"}
        and (
            getattr(config, "sliding_window", None) is None
            or not getattr(config, "use_sliding_window", True)
        )
        and not getattr(config, "mlp_bias", False)
        and attention.o_proj.bias is None
        and rope.get("rope_type", "default") in FIXED_ROPES
    )


def head_dim_of(model: Any) -> int:
    return int(_decoder(model).layers[0].self_attn.head_dim)


def _decoder(model: Any) -> Any:
    """Return the module that has the layers: a part of a causal LM, or a head itself."""
    return getattr(model, "model", model)


def narrowest_type(model: Any) -> torch.dtype:
    """Return the narrowest type that holds every weight exactly: loading has widened a bf16 or fp16
    checkpoint.
    """
    loaded: torch.dtype = model.dtype
    if loaded != torch.float32:
        return loaded
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    for dtype in (torch.bfloat16, torch.float16):
        if all(_is_exact(weight, dtype) for weight in matrices):
            return dtype
    return torch.float32


def _is_exact(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a type holds a matrix exactly, which its file may say without being read."""
    stored = stored_tensor(weight)
    if stored is not None and stored.dtype == dtype:
        return True
    # In parts, so that the copies that are compared are small.
    return all(
        torch.equal(part.float(), part.to(dtype).float())
        for part in weight_of(weight).split(ROWS_AT_ONCE)
    )


class Lent(Protocol):
    """Makes the addresses that the library reads weights from, which are valid for as long as it
    lives.
    """

    def matrix(self, *weights: Tensor) -> int:
        """Return the address of some matrices, one below the other."""

    def vector(self, *weights: Tensor | None) -> int | None:
        """Return the address of some vectors in fp32, one after the other; None if there are
        none.
        """


def make_decoder(
    library: Library, model: Any, kind: int, lend: Callable[[], Lent], slots: int, capacity: int
) -> Any:
    """Return a decoder of the library with the weights as `lend` gives them; ValueError if memory
    does not suffice.
    """
    config = model.config.get_text_config()
    decoder = _decoder(model)
    positions = config.max_position_embeddings
    head_dim = head_dim_of(model)
    cosines, sines = decoder.rotary_emb(torch.zeros(1), torch.arange(positions)[None])
    halves = [table[0, :, : head_dim // 2].contiguous() for table in (cosines, sines)]
    shape = Shape(
        len(decoder.layers),
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        head_dim,
        config.intermediate_size,
        config.vocab_size,
        positions,
        slots,
        capacity,
        model.lm_head.out_features,
        _reads(decoder.layers[0]),
        model.fc.in_features if hasattr(model, "fc") else 0,
        config.rms_norm_eps,
    )
    lent = lend()
    made = library.make(
        shape, kind, lent.vector(decoder.norm.weight), *(table.data_ptr() for table in halves)
    )
    # What is lent is freed before the next part, so that no two copies of all weights exist; the
    # largest part is first.
    lent = lend()
    tied = model.lm_head.weight is decoder.embed_tokens.weight
    embedding = None if tied else lent.matrix(decoder.embed_tokens.weight)
    library.load_both_ends(made, lent.matrix(model.lm_head.weight), embedding)
    if hasattr(model, "fc"):
        lent = lend()
        library.load_fusion(made, lent.matrix(model.fc.weight), lent.vector(model.fc.bias))
    for index, layer in enumerate(decoder.layers):
        lent = lend()
        library.load_layer(made, index, _layer_weights(layer, lent))
    return made


class LentTensors:
    """Tensors in one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._alive: list[Tensor] = []

    def matrix(self, *weights: Tensor) -> int:
        return self._lend([weight_of(weight).to(self._dtype) for weight in weights])

    def vector(self, *weights: Tensor | None) -> int | None:
        present = [weight_of(weight).float() for weight in weights if weight is not None]
        return self._lend(present) if present else None

    def _lend(self, weights: list[Tensor]) -> int:
        self._alive.append((weights[0] if len(weights) == 1 else torch.cat(weights)).contiguous())
        return self._alive[-1].data_ptr()


def _layer_weights(layer: Any, lent: Lent) -> LayerWeights:
    attention = layer.self_attn
    mlp = layer.mlp
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    return LayerWeights(
        lent.matrix(*(projection.weight for projection in projections)),
        lent.matrix(attention.o_proj.weight),
        lent.matrix(mlp.gate_proj.weight, mlp.up_proj.weight),
        lent.matrix(mlp.down_proj.weight),
        lent.vector(layer.input_layernorm.weight),
        lent.vector(layer.post_attention_layernorm.weight),
        lent.vector(*(projection.bias for projection in projections)),
        lent.vector(attention.q_norm.weight) if hasattr(attention, "q_norm") else None,
        lent.vector(attention.k_norm.weight) if hasattr(attention, "k_norm") else None,
        lent.vector(layer.hidden_norm.weight) if hasattr(layer, "hidden_norm") else None,
    )


def _reads(layer: Any) -> int:
    """Return the value of `reads` in model.h's `Shape`."""
    return 1 + layer.norm_first if hasattr(layer, "hidden_norm") else 0
