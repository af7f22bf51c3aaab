"""Converts the weights of a GGUF file one by one, in parts, so that hardly more than the file itself is read at once.

Only for architectures whose tensors and weights correspond one to one; transformers loads all others whole.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader, ReaderTensor

ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A layer's modules in transformers, by the names that llama.cpp gives their tensors."""
INTERLEAVED = "llama"
"""The architecture in whose files the two numbers that RoPE rotates together are neighbours."""
ROWS_AT_ONCE = 8192


def weight_name(tensor: str) -> str | None:
    """Return the name that transformers gives a tensor's weights; None for a tensor that is unknown here."""
    match = LAYER.fullmatch(tensor)
    if match is None:
        return ENDS.get(tensor)
    module = PARTS.get(match[2])
    return module and f"model.layers.{match[1]}.{module}.{match[3]}"


def weights_of(reader: "GGUFReader") -> dict[str, "ReaderTensor"]:
    """Return the tensors of a file by the names of their weights, those that are unknown by their own."""
    tensors = [tensor for tensor in reader.tensors if not tensor.name.startswith("rope_")]
    return {weight_name(tensor.name) or tensor.name: tensor for tensor in tensors}


def write_weights(path: Path, tensors: Mapping[str, "ReaderTensor"], config: Any, architecture: str) -> None:
    """Write tensors as bf16 weights in a safetensors file; SkitError if one cannot be dequantised."""
    import torch

    heads = heads_of(tensors, config, architecture)
    with path.open("wb") as file:
        file.write(header_of({name: [int(size) for size in reversed(own.shape)] for name, own in tensors.items()}))
        for name, tensor in tensors.items():
            for part in _dequantised(tensor, heads.get(name, 0)):
                file.write(part.to(torch.bfloat16).view(torch.uint8).numpy().tobytes())


def header_of(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return the beginning of a safetensors file of bf16 weights, which follow it in the same order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def heads_of(names: Iterable[str], config: Any, architecture: str) -> dict[str, int]:
    """Return the heads of every weight whose rows are put apart, see `_dequantised`."""
    if architecture != INTERLEAVED:
        return {}
    return {name: heads for name in names if (heads := _heads(name, config))}


def _heads(name: str, config: Any) -> int:
    """Return the number of heads whose queries or keys a weight makes; 0 of any other weight."""
    if ".q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".k_proj." in name else 0


def _dequantised(tensor: "ReaderTensor", heads: int) -> Iterator["torch.Tensor"]:
    """Yield the rows of a tensor in float32, the two halves of each head put apart if `heads` is not 0."""
    import torch
    from gguf import dequantize

    data, rows = tensor.data, len(tensor.data)
    at_once = rows if heads else ROWS_AT_ONCE
    for first in range(0, rows, at_once):
        try:
            part = torch.from_numpy(dequantize(data[first : first + at_once], tensor.tensor_type).copy())
        except Exception as error:  # the package lets through whatever a file's content leads to
            raise SkitError(f"cannot convert the tensor {tensor.name}: {first_line(error)}") from error
        if heads:
            pairs = part.reshape(heads, rows // heads // 2, 2, *part.shape[1:])
            part = pairs.swapaxes(1, 2).reshape(part.shape)
        yield part.contiguous()
