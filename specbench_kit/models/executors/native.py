"""Llama-like models on CPU in one call per forward: weights as they are stored, arithmetic in fp32, bitwise repeatable.

Every output is one sum in one order, so the logits of a token do not depend on the batch, the chunk, the tree or the
number of threads that it is computed with.
"""

import ctypes
from collections.abc import Sequence
from copy import copy
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench_kit.errors import SkitError
from specbench_kit.models.executors.base import Executor, Forward, Row, executors
from specbench_kit.models.executors.library import Batch, LayerWeights, Shape, load_library

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FAULTS = {
    1: "a token id outside its vocabulary",
    2: "a position beyond its context",
    3: "a slot that is not there",
    4: "a place beyond its slot",
    5: "a token that sees no place, or places out of order",
    6: "logits of a token that is not in the batch",
    7: "more memory than there is",
}
FIXED_ROPES = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on nothing but the position."""


@executors.register("native")
class NativeExecutor(Executor):
    """Llama, Mistral, Qwen2 and Qwen3 shapes; needs the part that is compiled when the kit is installed."""

    priority = 2
    bitwise = True

    def __init__(self, model: Any, slots: int, capacity: int, vocabulary: int | None) -> None:
        super().__init__(model, slots, capacity, vocabulary)
        library = load_library()
        if library is None:
            raise SkitError(f"executor 'native' {self.missing()}")
        self._library = library
        config, outputs = model.config.get_text_config(), model.lm_head.out_features
        self._padded = library.skit_padded(outputs)
        self._size = min(vocabulary or outputs, outputs)
        self._width = config.hidden_size
        self._kv_bytes = 8 * config.num_hidden_layers * config.num_key_value_heads * _head_dim(model)
        self._decoder = _make(library, model, slots, capacity)

    def __del__(self) -> None:
        if getattr(self, "_decoder", None):
            self._library.skit_delete(self._decoder)

    @classmethod
    def missing(cls) -> str:
        return "" if load_library() else "was not compiled: install a C++ compiler, then the kit again"

    @classmethod
    def supports(cls, model: Any) -> bool:
        return load_library() is not None and model.device.type == "cpu" and _computable(model)

    def forward(self, rows: Sequence[Row], layers: Sequence[int] = ()) -> Forward:
        return self._forward(rows, layers)

    def _forward(
        self, rows: Sequence[Row], layers: Sequence[int], states: Tensor | None = None, made: Tensor | None = None
    ) -> "NativeForward":
        """`states` [tokens, width] are read beside the tokens' embeddings, and what they become goes to `made`."""
        counts = [row.keep for row in rows]
        tokens, kept = sum(len(row.tokens) for row in rows), sum(counts)
        numbers, offsets = _lay_out(rows, layers)
        logits = torch.empty((kept, self._padded))
        hidden = torch.empty((len(layers), kept, self._width))
        best = np.empty(kept, np.int32)
        first = numbers.ctypes.data
        lists = (first + 4 * offset for offset in offsets)
        beside = (None if states is None else states.data_ptr(), None if made is None else made.data_ptr())
        outputs = logits.data_ptr(), hidden.data_ptr(), best.ctypes.data, *beside
        batch = Batch(tokens, kept, len(layers), torch.get_num_threads(), self._size, *lists, *outputs)
        _refuse(self._library.skit_forward(self._decoder, batch))
        found = {layer: hidden[place] for place, layer in enumerate(layers)}
        return NativeForward(self._library, logits, self._size, best, counts, found)

    def beside(self, slots: int, capacity: int) -> "NativeExecutor":
        decoder = _found(self._library.skit_beside(self._decoder, slots, capacity))
        other = copy(self)
        other.slots, other.capacity, other._decoder = slots, capacity, decoder
        return other

    def move(self, slot: int, sources: Sequence[int], to: int) -> None:
        places = np.array(sources, np.int32)
        _refuse(self._library.skit_move(self._decoder, slot, len(places), places.ctypes.data, to))

    def kv_bytes(self, slots: int, capacity: int) -> int:
        return int(self._kv_bytes * slots * capacity)


class NativeForward(Forward):
    """Answers what the library has found out already without looking at the logits again."""

    def __init__(
        self,
        library: ctypes.CDLL,
        logits: Tensor,
        size: int,
        best: NDArray[np.int32],
        counts: list[int],
        hidden: dict[int, Tensor],
    ) -> None:
        cut = logits[:, :size]
        parts = [cut] if len(counts) == 1 else list(cut.split(counts))
        states = {layer: found.split(counts) for layer, found in hidden.items()}
        super().__init__(parts, states, self._describe, self._candidates)
        self.logits, self._size = cut, size
        self._library, self._whole, self.best, self.counts = library, logits, best, counts

    def mask(self, tokens: Sequence[int]) -> None:
        super().mask(tokens)
        self.best = self.logits.argmax(-1).numpy()

    def argmax(self) -> list[list[int]]:
        best = iter(self.best.tolist())
        return [list(islice(best, count)) for count in self.counts]

    def _describe(self, temperature: float) -> list[list[float]]:
        rows, stride = self._whole.shape
        found = (ctypes.c_float * 4 * rows)()
        self._library.skit_describe(self._whole.data_ptr(), rows, stride, self._size, temperature, found)
        return [list(row) for row in found]

    def _candidates(
        self, temperature: float, rows: Sequence[int], bases: Sequence[float], branch: int, count: int
    ) -> list[tuple[float, int, int]]:
        number, places = len(rows), ctypes.c_int32 * count
        asked = (ctypes.c_int32 * number)(*rows), (ctypes.c_float * number)(*bases), number, branch, count
        scores, origins, tokens = (ctypes.c_float * count)(), places(), places()
        logits, stride, size = self._whole.data_ptr(), self._whole.shape[1], self._size
        found = self._library.skit_candidates(logits, stride, size, temperature, *asked, scores, origins, tokens)
        if found < 0:
            raise SkitError(f"the draft ran out of {FAULTS[7]}")
        return list(zip(scores[:found], origins[:found], tokens[:found], strict=True))


def _refuse(fault: int) -> None:
    if fault:
        raise SkitError(f"the model was asked for {FAULTS[fault]}")


def _lay_out(rows: Sequence[Row], layers: Sequence[int]) -> tuple[NDArray[np.int32], list[int]]:
    """All numbers of a batch in one array, and where each of the nine lists of `Batch` begins in it."""
    token: list[int] = []
    position: list[int] = []
    slot: list[int] = []
    place: list[int] = []
    prefix: list[int] = []
    extra_offset: list[int] = [0]
    extra: list[int] = []
    kept: list[int] = []
    for row in rows:
        count, start = len(row.tokens), row.start
        token += row.tokens
        slot += [row.slot] * count
        place += range(start, start + count)
        kept += range(len(token) - row.keep, len(token))
        if row.paths is None:
            position += range(start, start + count)
            prefix += range(start + 1, start + count + 1)
            extra_offset += [len(extra)] * count
            continue
        prefix += [row.prefix] * count
        for path in row.paths:
            position.append(row.prefix + len(path) - 1)
            extra += [row.prefix + node for node in path]
            extra_offset.append(len(extra))
    lists = (token, position, slot, place, prefix, extra_offset, extra, kept, list(layers))
    offsets = [0, *accumulate(map(len, lists))]
    return np.fromiter(chain(*lists), np.int32, offsets[-1]), offsets[:-1]


def _computable(model: Any) -> bool:
    """Whether the forward in model.h is this model's."""
    return model.config.model_type in {"llama", "mistral", "qwen2", "qwen3"} and computable(model)


def computable(model: Any) -> bool:
    """Whether what it does in its layers is what model.h does."""
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
    """What has the layers: a part of a causal LM, a head itself."""
    return getattr(model, "model", model)


def _stored(model: Any) -> torch.dtype:
    """The narrowest type that holds every weight as it is: loading widens a checkpoint in bf16 or fp16."""
    loaded: torch.dtype = model.dtype
    if loaded != torch.float32:
        return loaded
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(weight, weight.to(dtype).float()) for weight in matrices):
            return dtype
    return torch.float32


def _make(library: ctypes.CDLL, model: Any, slots: int, capacity: int) -> int:
    config, decoder = model.config.get_text_config(), _decoder(model)
    dtype, head_dim = _stored(model), _head_dim(model)
    held: list[Tensor] = []  # until the library has copied them

    def matrix(*weights: Tensor) -> int:
        held.append(torch.cat([weight.to(dtype) for weight in weights]).contiguous())
        return held[-1].data_ptr()

    def vector(*weights: Tensor | None) -> int | None:
        if weights[0] is None:
            return None
        held.append(torch.cat([weight.float() for weight in weights if weight is not None]).contiguous())
        return held[-1].data_ptr()

    layers = (LayerWeights * len(decoder.layers))()
    for place, layer in enumerate(decoder.layers):
        attention, mlp = layer.self_attn, layer.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        layers[place] = LayerWeights(
            matrix(*(one.weight for one in projections)),
            matrix(attention.o_proj.weight),
            matrix(mlp.gate_proj.weight, mlp.up_proj.weight),
            matrix(mlp.down_proj.weight),
            vector(layer.input_layernorm.weight),
            vector(layer.post_attention_layernorm.weight),
            vector(*(one.bias for one in projections)),
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
    found = library.skit_new(
        ctypes.byref(shape),
        KINDS[dtype],
        layers,
        matrix(model.lm_head.weight),
        matrix(decoder.embed_tokens.weight),
        vector(decoder.norm.weight),
        *(table.data_ptr() for table in halves),
    )
    return _found(found)


def _reads(layer: Any) -> int:
    """`reads` of model.h's `Shape`."""
    return 1 + layer.norm_first if hasattr(layer, "hidden_norm") else 0


def _found(decoder: int | None) -> int:
    if not decoder:
        raise SkitError("the model and its KV do not fit into memory: lower --batch-size")
    return int(decoder)
