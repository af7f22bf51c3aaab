"""An executor for one stage of a pipeline: a slice of a model's layers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Identity, ModuleList
from torch.nn.utils.rnn import pad_sequence

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.kv import LayerKV
from specbench_kit.models.executors.padded import Computed, ForwardInput
from specbench_kit.models.executors.transformers import TransformersExecutor, WindowCache

ABLE = ("llama", "mistral", "qwen2", "qwen3")
"""Types of models that only embed, run their layers, normalise and project."""


class StageExecutor(TransformersExecutor):
    """Runs stage `stage` of `stages`, counted from 1: tokens or hidden states in, hidden states or
    logits out.

    The model is cut in place and keeps only what this stage needs.
    """

    def __init__(
        self,
        model: Any,
        stage: int,
        stages: int,
        device: torch.device,
        slots: int,
        capacity: int,
        vocabulary: int,
    ) -> None:
        require_cuttable(model, stages)
        self.first = stage == 1
        self.last = stage == stages
        self.received: Mapping[int, Tensor] = {}
        """The previous stage's hidden states [tokens, hidden] by slot; they are set before a
        forward.
        """
        depth = model.config.num_hidden_layers
        # A stage's output is the next one's first input and counts there; the last stage adds the
        # normalised states.
        self.layers = range(
            depth * (stage - 1) // stages, depth + 1 if self.last else depth * stage // stages
        )
        _cut(model, stage, stages)
        super().__init__(model.to(device), slots, capacity, vocabulary if self.last else None)

    @property
    def kv_layers(self) -> list[LayerKV]:
        """Return the sizes by the configuration, since no hidden states have been received yet."""
        attention = [layer.self_attn for layer in self.model.model.layers]
        heads = self.config.num_key_value_heads
        return [LayerKV(heads, layer.head_dim, layer.head_dim) for layer in attention]

    def compute(self, batch: ForwardInput) -> Computed:
        source = (
            {"input_ids": batch.tokens} if self.first else {"inputs_embeds": self._embedded(batch)}
        )
        output = self.model.model(
            **source,
            position_ids=batch.positions,
            attention_mask=self._mask(batch),
            past_key_values=WindowCache(batch.kv),
            use_cache=True,
            output_hidden_states=bool(batch.layers),
        )
        hidden: Tensor = output.last_hidden_state[:, batch.first :]
        states = {
            layer: output.hidden_states[layer - self.layers[0]][:, batch.first :]
            for layer in batch.layers
        }
        return Computed(self.model.lm_head(hidden) if self.last else hidden, states)

    def _embedded(self, batch: ForwardInput) -> Tensor:
        """Return the received hidden states padded like the batch: [rows, width, hidden]."""
        return pad_sequence(
            [self.received[slot] for slot in batch.kv.slot_of_row], batch_first=True
        )


def require_cuttable(model: Any, stages: int) -> None:
    """Raise SkitError for a model that cannot be cut into that many stages."""
    kind = model.config.model_type
    layers = model.config.num_hidden_layers
    if kind not in ABLE:
        raise SkitError(
            f"models of type '{kind}' cannot be cut into processes; those of type {', '.join(ABLE)} can"
        )
    if stages > layers:
        raise SkitError(
            f"a model of {layers} layers cannot be cut into {stages} stages: choose stages={layers} or less"
        )


def _cut(model: Any, stage: int, stages: int) -> None:
    decoder = model.model
    config = model.config
    layers = len(decoder.layers)
    first = layers * (stage - 1) // stages
    end = layers * stage // stages
    decoder.layers = ModuleList(decoder.layers[first:end])
    for index, layer in enumerate(decoder.layers):
        layer.self_attn.layer_idx = index
    config.num_hidden_layers = end - first
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[first:end]
    if stage > 1:
        decoder.embed_tokens = Identity()
    if stage < stages:
        decoder.norm = model.lm_head = Identity()
