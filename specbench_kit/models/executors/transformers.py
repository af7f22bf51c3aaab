"""Any Hugging Face causal LM, run by its own transformers code."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specbench_kit.models.executors.base import executors
from specbench_kit.models.executors.kv import KVShape, KVWindow
from specbench_kit.models.executors.padded import Computed, ForwardInput, PaddedExecutor

MASKED_BY_US = {"full_attention", "sliding_attention", "global"}
"""Kinds of layer that an explicit mask describes; others keep a state, or a mask, of their own."""


class WindowCache(Cache):
    """Gives a transformers model the slots of a KV window in place of a cache that grows."""

    def __init__(self, window: KVWindow) -> None:
        super().__init__(layers=[])
        self.window = window

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.window.write(layer_idx, torch.stack((key_states, value_states)))
        return self.window.read(layer_idx)

    def get_seq_length(self, *_args: Any, **_kwargs: Any) -> int:
        return self.window.length - self.window.width


@executors.register("transformers")
class TransformersExecutor(PaddedExecutor):
    """Runs the plain transformers forward with an explicit 4-D mask and position ids."""

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        layer_types = set(getattr(self.config, "layer_types", None) or [])
        slides = not layer_types or "sliding_attention" in layer_types
        self.window: int | None = getattr(self.config, "sliding_window", None) if slides else None
        self.mixed = "sliding_attention" in layer_types and len(layer_types) > 1
        self.needs_key_positions = self.window is not None
        super().__init__(model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        config = model.config.get_text_config()
        layers = {kind for name in ("layer_types", "attention_layers") for kind in getattr(config, name, None) or ()}
        takes_positions = "position_ids" in signature(model.forward).parameters
        return layers <= MASKED_BY_US and takes_positions and not getattr(model, "_is_stateful", False)

    @property
    def kv_shape(self) -> KVShape:
        config = self.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return KVShape(config.num_hidden_layers, heads, head_dim)

    def compute(self, batch: ForwardInput) -> Computed:
        output = self.model(
            input_ids=batch.tokens,
            position_ids=batch.positions,
            attention_mask=self._mask(batch),
            past_key_values=WindowCache(batch.kv),
            use_cache=True,
            logits_to_keep=batch.tokens.shape[1] - batch.first,
            output_hidden_states=bool(batch.layers),
        )
        hidden = {layer: output.hidden_states[layer][:, batch.first :] for layer in batch.layers}
        return Computed(output.logits, hidden)

    def _mask(self, batch: ForwardInput) -> Tensor | dict[str, Tensor]:
        if self.window is None or batch.key_positions is None:
            return batch.mask
        distance = batch.positions[:, None, :, None] - batch.key_positions[:, None, None, :]
        sliding = batch.mask.masked_fill(distance >= self.window, torch.finfo(batch.mask.dtype).min)
        return {"full_attention": batch.mask, "sliding_attention": sliding} if self.mixed else sliding
