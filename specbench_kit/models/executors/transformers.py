"""Any Hugging Face causal LM, run by its own transformers code."""

import sys
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.models.executors.base import executors
from specbench_kit.models.executors.kv import KVWindow, LayerKV
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
        self.window.write(layer_idx, key_states, value_states)
        return self.window.read(layer_idx, key_states.device)

    def get_seq_length(self, *_args: Any, **_kwargs: Any) -> int:
        return self.window.length - self.window.width


class _OneToken(KVWindow):
    """A window without a store: it keeps the keys and values of the only token."""

    def __init__(self) -> None:
        self.length = 1
        self.width = 1
        self._written: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._written[layer] = keys, values

    def read(self, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return self._written[layer]

    def layers(self) -> list[LayerKV]:
        """Return the size of what every layer wrote; nothing of layers between that wrote
        nothing.
        """
        nothing = torch.empty(1, 0, 1, 0)
        depth = max(self._written, default=-1) + 1
        written = (self._written.get(layer, (nothing, nothing)) for layer in range(depth))
        return [LayerKV(keys.shape[1], keys.shape[3], values.shape[3]) for keys, values in written]


@executors.register("transformers")
class TransformersExecutor(PaddedExecutor):
    """Runs the plain transformers forward with an explicit 4-D mask and position ids."""

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        layer_types = set(getattr(self.config, "layer_types", None) or [])
        slides = not layer_types or "sliding_attention" in layer_types
        slides = slides and _masks_windows(model)
        self.window: int | None = getattr(self.config, "sliding_window", None) if slides else None
        self.mixed = "sliding_attention" in layer_types and len(layer_types) > 1
        self.needs_key_positions = self.window is not None
        super().__init__(model, slots, capacity, vocabulary)

    @classmethod
    def supports(cls, model: Any) -> bool:
        config = model.config.get_text_config()
        layers = {
            kind
            for name in ("layer_types", "attention_layers")
            for kind in getattr(config, name, None) or ()
        }
        takes_positions = "position_ids" in signature(
            model.forward
        ).parameters and not _offsets_positions(model)
        stateful = getattr(model, "_is_stateful", False)
        return layers <= MASKED_BY_US and takes_positions and not stateful and _is_causal(config)

    @cached_property
    def kv_layers(self) -> list[LayerKV]:
        """Return the sizes that a forward of one token writes; configurations name them in many
        ways, or not at all.
        """
        window = _OneToken()
        number = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        mask = torch.zeros((1, 1, 1, 1), dtype=self._dtype, device=self.device)
        try:
            with torch.inference_mode():
                self.compute(ForwardInput(number, number, mask, window, 0, number))
        except (MemoryError, torch.OutOfMemoryError):
            raise  # it says nothing about the kind of the model
        except (
            Exception
        ) as error:  # whatever the code of a model raises whose cache is of another kind
            raise self._refused(first_line(error)) from error
        if not (layers := window.layers()):
            raise self._refused("its layers keep no KV")
        return layers

    def _refused(self, reason: str) -> SkitError:
        return SkitError(
            f"models of type '{self.model.config.model_type}' cannot be run: {reason}; use another model"
        )

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
        return (
            {"full_attention": batch.mask, "sliding_attention": sliding} if self.mixed else sliding
        )


def _is_causal(config: Any) -> bool:
    """Return whether a token attends to earlier ones alone; an encoder of BERT's family attends to
    later ones too.
    """
    return not hasattr(config, "add_cross_attention") or getattr(config, "is_decoder", True)


def _offsets_positions(model: Any) -> bool:
    """Return whether a model numbers positions from its padding token on, as RoBERTa's family
    does.
    """
    tables = (
        module for name, module in model.named_modules() if name.endswith("position_embeddings")
    )
    return any(getattr(table, "padding_idx", None) is not None for table in tables)


def _masks_windows(model: Any) -> bool:
    """Return whether a model's own code applies the sliding window that its configuration names."""
    return hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
