"""Runs Llama-like models on a CPU in one call per forward, with stored weights and fp32 arithmetic.

Every output is one sum in one order, so the logits of a token do not depend, bitwise, on the batch, the chunk, the tree
or the number of threads.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.base import Executor, Forward, Row, executors
from specbench_kit.models.executors.library import LayerWeights, Library, Logits, Shape, load_library

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FIXED_ROPES = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on the position alone."""


@executors.register("native")
class NativeExecutor(Executor):
    """Runs models of the types Llama, Mistral, Qwen2 and Qwen3; needs the extension compiled at installation."""

    priority = 2
    bitwise = True

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, vocabulary)
        library = load_library()
        if library is None:
            raise SkitError(f"executor 'native' {self.missing()}")
        self._library = library
        config, outputs = model.config.get_text_config(), model.lm_head.out_features
        self._size = min(vocabulary or outputs, outputs)
        self._width = config.hidden_size
        self._kv_bytes = 8 * config.num_hidden_layers * config.num_key_value_heads * _head_dim(model)
        self._decoder = _make(library, model, slots, capacity)

    @classmethod
    def missing(cls) -> str:
        return "" if load_library() else "was not compiled: install a C++ compiler, then the kit again"

    @classmethod
    def supports(cls, model: Any) -> bool:
        return load_library() is not None and model.device.type == "cpu" and _computable(model)

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        return self._forward(rows, layers, (None, None))

    def _forward(
        self, rows: Sequence[Row], layers: Sequence[int], states: tuple[int | None, int | None]
    ) -> "NativeForward":
        """Compute a forward; a head passes addresses of [tokens, width], of the states it reads and of its outputs."""
        counts = [row.keep for row in rows]
        hidden = torch.empty((len(layers), sum(counts), self._width)) if layers else None
        address = None if hidden is None else hidden.data_ptr()
        threads = torch.get_num_threads()
        try:
            results = self._library.forward(self._decoder, rows, threads, self._size, layers, address, *states)
        except ValueError as error:
            raise _refused(error) from error
        by_layer = {} if hidden is None else {layer: hidden[i].split(counts) for i, layer in enumerate(layers)}
        return NativeForward(*results, self._size, counts, by_layer)

    def with_slots(self, slots: int, capacity: int) -> "NativeExecutor":
        executor = copy(self)
        executor.slots, executor.capacity = slots, capacity
        try:
            executor._decoder = self._library.share_weights(self._decoder, slots, capacity)
        except ValueError as error:
            raise _too_large() from error
        return executor

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        try:
            self._library.move(self._decoder, slot, sources, to)
        except ValueError as error:
            raise _refused(error) from error

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return int(self._kv_bytes * slots * capacity)


class NativeForward(Forward):
    """Answers from what the library has computed on the way, without reading the logits again."""

    def __init__(
        self,
        logits: Logits,
        best: list[int],
        size: int,
        counts: list[int],
        hidden: Mapping[int, Sequence[Tensor]],
    ) -> None:
        # The base class's constructor is left out: for a small model it would be most of the overhead of a forward.
        self._hidden, self.statistics, self.candidates = hidden, logits.describe, logits.candidates
        self._buffer, self._best, self._size, self.counts = logits, best, size, counts

    @cached_property
    def logits(self) -> Tensor:
        values = torch.frombuffer(self._buffer, dtype=torch.float32)
        return values.view(len(self._best), -1)[:, : self._size]

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        return list(self.logits.split(self.counts))

    def mask(self, tokens: Sequence[int]) -> None:
        super().mask(tokens)
        self._best = [-1] * len(self._best) if self.is_nan() else self.logits.argmax(-1).tolist()

    def is_nan(self) -> bool:
        return -1 in self._best

    def argmax(self) -> list[list[int]]:
        best = iter(self._best)
        return [list(islice(best, count)) for count in self.counts]


def _refused(error: ValueError) -> SkitError:
    return SkitError(f"the model was asked for {error}")


def _too_large() -> SkitError:
    return SkitError("the model and its KV do not fit into memory: lower --batch-size")


def _computable(model: Any) -> bool:
    """Return whether model.h computes this type of model."""
    return model.config.model_type in {"llama", "mistral", "qwen2", "qwen3"} and computable(model)


def computable(model: Any) -> bool:
    """Return whether the model's layers do what model.h does."""
    config, attention = model.config.get_text_config(), _decoder(model).layers[0].self_attn
    rope = getattr(config, "rope_parameters", None) or {}
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        model.dtype == torch.float32
        and config.hidden_act == "silu"
        and layers == {"full_attention"}
        and (getattr(config, "sliding_window", None) is None or not getattr(config, "use_sliding_window", True))
        and not getattr(config, "mlp_bias", False)
        and attention.o_proj.bias is None
        and rope.get("rope_type", "default") in FIXED_ROPES
        and not any(size % 16 for size in (config.hidden_size, config.intermediate_size, attention.head_dim))
    )


def _head_dim(model: Any) -> int:
    return int(_decoder(model).layers[0].self_attn.head_dim)


def _decoder(model: Any) -> Any:
    """Return the module that has the layers: a part of a causal LM, or a head itself."""
    return getattr(model, "model", model)


def _stored(model: Any) -> torch.dtype:
    """Return the narrowest type that holds every weight exactly: loading has widened a bf16 or fp16 checkpoint."""
    loaded: torch.dtype = model.dtype
    if loaded != torch.float32:
        return loaded
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(weight, weight.to(dtype).float()) for weight in matrices):
            return dtype
    return torch.float32


def _make(library: Library, model: Any, slots: int, capacity: int) -> Any:
    config, decoder = model.config.get_text_config(), _decoder(model)
    dtype, head_dim = _stored(model), _head_dim(model)
    alive: list[Tensor] = []  # keeps the tensors until the library has copied them

    def matrix(*weights: Tensor) -> int:
        alive.append(torch.cat([weight.to(dtype) for weight in weights]).contiguous())
        return alive[-1].data_ptr()

    def vector(*weights: Tensor | None) -> int | None:
        if weights[0] is None:
            return None
        alive.append(torch.cat([weight.float() for weight in weights if weight is not None]).contiguous())
        return alive[-1].data_ptr()

    layers = (LayerWeights * len(decoder.layers))()
    for index, layer in enumerate(decoder.layers):
        attention, mlp = layer.self_attn, layer.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        layers[index] = LayerWeights(
            matrix(*(projection.weight for projection in projections)),
            matrix(attention.o_proj.weight),
            matrix(mlp.gate_proj.weight, mlp.up_proj.weight),
            matrix(mlp.down_proj.weight),
            vector(layer.input_layernorm.weight),
            vector(layer.post_attention_layernorm.weight),
            vector(*(projection.bias for projection in projections)),
            vector(attention.q_norm.weight) if hasattr(attention, "q_norm") else None,
            vector(attention.k_norm.weight) if hasattr(attention, "k_norm") else None,
            vector(layer.hidden_norm.weight) if hasattr(layer, "hidden_norm") else None,
        )
    positions = config.max_position_embeddings
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
        config.rms_norm_eps,
    )
    matrices = matrix(model.lm_head.weight), matrix(decoder.embed_tokens.weight)
    angles = (table.data_ptr() for table in halves)
    try:
        return library.make(shape, KINDS[dtype], layers, *matrices, vector(decoder.norm.weight), *angles)
    except ValueError as error:
        raise _too_large() from error


def _reads(layer: Any) -> int:
    """Return the value of `reads` in model.h's `Shape`."""
    return 1 + layer.norm_first if hasattr(layer, "hidden_norm") else 0
