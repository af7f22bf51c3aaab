"""Copies of GGUF files with other types of weights or other metadata."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from specbench_kit.models.gguf import open_gguf

VALUE_TYPES = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}
Encoded = tuple[NDArray[Any], gguf.GGMLQuantizationType] | None
Encode = Callable[[str, NDArray[np.float32]], Encoded]
"""Turns the matrix of a name into blocks and their type; None leaves it as it is."""


def quantised(kind: str) -> Encode:
    """Return a function that quantises a matrix as the package gguf does."""
    block_type = gguf.GGMLQuantizationType[kind]
    block_size, _ = gguf.GGML_QUANT_SIZES[block_type]

    def encode(_: str, matrix: NDArray[np.float32]) -> Encoded:
        return None if matrix.shape[1] % block_size else (quantize(matrix, block_type), block_type)

    return encode


def rewrite(
    path: Path,
    target: Path,
    encode: Encode | None = None,
    metadata: Mapping[str, object] | None = None,
    drop: str = "",
    without: Collection[str] = (),
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:
    """Copy a file of f32 weights with its matrices in another type, or with other metadata or tensors."""
    reader = open_gguf(path)
    changes = metadata or {}
    architecture = changes.get("general.architecture", "llama")
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if drop and name.startswith(drop) and name not in changes:
            continue
        value = changes.get(name, field.contents())
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type)
    for name, value in changes.items():
        if name not in reader.fields:
            writer.add_key_value(name, value, VALUE_TYPES[type(value)])
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    for tensor in reader.tensors:
        if tensor.name in without:
            continue
        data = np.array(tensor.data)
        encoded = encode(tensor.name, data) if encode is not None and data.ndim == 2 else None
        if encoded is None:
            writer.add_tensor(tensor.name, data)
        else:
            writer.add_tensor(tensor.name, encoded[0], raw_dtype=encoded[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
