"""Matrices that are kept in 4 bits in a safetensors file, and rows that are taken out of another
matrix.

Both are parameters of a shell (see `stored.py`): an executor that multiplies blocks reads them as
they are, and everything else gets numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specbench_kit.models.weights.blocks import FLOAT, StoredBlocks, blocks_of
from specbench_kit.models.weights.stored import StoredTensor, stored_tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TYPE = "Q4_1"
"""The type of blocks, by its name in GGUF files: 32 codes of 4 bits, with a scale and a minimum."""
BLOCKS_KEY = "blocks"
"""What the file's metadata calls that type."""
BLOCK = 32
BLOCK_BYTES = 20


def can_be_packed(weight: Tensor) -> bool:
    """Return whether a weight is a matrix whose rows are whole blocks."""
    return weight.dim() == 2 and weight.shape[1] % BLOCK == 0


def pack(weight: Tensor) -> Tensor:
    """Return the blocks [rows, bytes] of a matrix, as bytes."""
    from gguf import GGMLQuantizationType, quants

    blocks = quants.quantize(weight.detach().float().cpu().numpy(), GGMLQuantizationType[TYPE])
    return torch.from_numpy(blocks)


def unpack(blocks: StoredBlocks) -> Tensor:
    """Return the numbers that blocks stand for."""
    from gguf import GGMLQuantizationType, quants

    rows = blocks.read().reshape(blocks.shape[0], -1)
    return torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType(blocks.type)))


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor(StoredTensor):
    """A matrix in blocks."""

    blocks: StoredBlocks

    def read(self) -> Tensor:
        """Return its numbers."""
        return unpack(self.blocks)


@dataclass(frozen=True, slots=True, eq=False)
class TakenRows(StoredTensor):
    """Some rows of a stored matrix."""

    whole: StoredTensor
    rows: Tensor

    def read(self) -> Tensor:
        """Return these rows."""
        return self.whole.read()[self.rows]


@dataclass(frozen=True, slots=True, eq=False)
class TakenBlocks(StoredBlocks):
    """Some rows of a matrix of blocks."""

    whole: StoredBlocks
    rows: Tensor

    def read(self) -> "NDArray[np.uint8]":
        """Return the bytes of these rows."""
        rows = self.whole.read().reshape(self.whole.shape[0], -1)
        taken: NDArray[np.uint8] = rows[self.rows.numpy()].reshape(-1)
        return taken


def rows_of(weight: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a weight, which may be a shell's parameter and is not read then."""
    stored = stored_tensor(weight)
    if stored is None:
        return weight[rows.to(weight.device)]
    blocks = blocks_of(weight)
    shape = (len(rows), *stored.shape[1:])
    taken = TakenRows(stored.file, stored.name, shape, stored.dtype, stored, rows)
    if blocks is None:
        return _shell_parameter(weight.dtype, taken, None)
    return _shell_parameter(
        weight.dtype,
        taken,
        TakenBlocks(
            blocks.file,
            blocks.name,
            blocks.offset,
            blocks.type,
            shape,
            blocks.size_bytes // blocks.shape[0] * len(rows),
            blocks.heads,
            blocks,
            rows,
        ),
    )


def packed_parameters(
    file: Path, vectors: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the parameters of a shell for what a file holds: its matrices of blocks, and those of
    its `vectors` of numbers that are named.

    Raise ValueError if the file says nothing of blocks, or names another type of them.
    """
    from gguf import GGMLQuantizationType

    header, start = _header(file)
    kind = header.get("__metadata__", {}).get(BLOCKS_KEY)
    if kind != TYPE:
        raise ValueError(f"its blocks are {kind}, and only {TYPE} are known")
    parameters: dict[str, Tensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        place = file, name, start + first
        if entry["dtype"] == "U8":
            rows, stride = entry["shape"]
            shape = rows, stride // BLOCK_BYTES * BLOCK
            number = int(GGMLQuantizationType[TYPE])
            blocks = StoredBlocks(*place, number, shape, end - first, 0)
            stored: StoredTensor = PackedTensor(file, name, shape, torch.float32, blocks)
        elif name in vectors and entry["dtype"] == "F32":
            shape = tuple(entry["shape"])
            blocks = StoredBlocks(*place, FLOAT, shape, end - first, 0)
            stored = StoredTensor(file, name, shape, torch.float32)
        else:
            continue
        parameters[name] = _shell_parameter(dtype, stored, blocks)
    return parameters


def _shell_parameter(
    dtype: torch.dtype, stored: StoredTensor, blocks: StoredBlocks | None
) -> nn.Parameter:
    empty = torch.empty(stored.shape, dtype=dtype, device="meta")
    parameter: Any = nn.Parameter(empty, requires_grad=False)
    parameter.stored = stored
    parameter.blocks = blocks
    return parameter  # type: ignore[no-any-return]


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and where the data behind it begin."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        return json.loads(content.read(length)), 8 + length
