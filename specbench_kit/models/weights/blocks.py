"""Tensors of a GGUF file as they are stored there: blocks of numbers of a few bits, with scales of their own."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench_kit.core.errors import SkitError

if TYPE_CHECKING:  # the names of models need neither
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

RECORD = "gguf.json"
"""The file in a converted folder that says which GGUF file it was made from, and where that file's tensors are."""
FLOAT = 0
"""The number of the type of tensors in 32 bits."""


class BlockSize(NamedTuple):
    """The number of weights in a block of a type, and the bytes that they take."""

    weights: int
    bytes: int


BLOCKS = {
    2: BlockSize(32, 18),  # Q4_0
    3: BlockSize(32, 20),  # Q4_1
    6: BlockSize(32, 22),  # Q5_0
    7: BlockSize(32, 24),  # Q5_1
    8: BlockSize(32, 34),  # Q8_0
    12: BlockSize(256, 144),  # Q4_K
    13: BlockSize(256, 176),  # Q5_K
    14: BlockSize(256, 210),  # Q6_K
}
"""The types whose blocks csrc/blocks.h multiplies, by their numbers in a file."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A tensor in a GGUF file. `heads` is not 0 if the two numbers that RoPE rotates together are neighbours in it."""

    file: Path
    name: str
    offset: int
    type: int
    shape: tuple[int, ...]
    heads: int = 0

    @property
    def is_product(self) -> bool:
        """Return whether it is a matrix whose blocks can be multiplied as they are."""
        size = BLOCKS.get(self.type)
        return size is not None and len(self.shape) == 2 and self.shape[1] % size.weights == 0

    @property
    def size_bytes(self) -> int:
        count = prod(self.shape)
        size = BLOCKS.get(self.type)
        return 4 * count if size is None else count // size.weights * size.bytes

    def read(self) -> "NDArray[np.uint8]":
        """Return its bytes; their memory is the file's, mapped, until the last reference to it is gone."""
        import numpy as np

        try:
            return np.memmap(self.file, np.uint8, "r", self.offset, (self.size_bytes,))
        except (OSError, ValueError) as error:
            raise SkitError(f"cannot read {self.name} in '{self.file}', which has changed: {error}") from error

    def numbers(self) -> "NDArray[np.float32]":
        """Return the numbers of a tensor in 32 bits."""
        import numpy as np

        return self.read().view(np.float32).reshape(self.shape)


def tensor_table(tensors: Mapping[str, Any], heads: Mapping[str, int]) -> dict[str, dict[str, object]]:
    """Return what a converted folder keeps of the places of a file's tensors; `tensors` are those of gguf's reader."""
    return {
        name: {
            "type": int(tensor.tensor_type),
            "offset": int(tensor.data_offset),
            "shape": [int(size) for size in reversed(tensor.shape)],
            "heads": heads.get(name, 0),
        }
        for name, tensor in tensors.items()
    }


def stored_blocks(folder: Path, find_file: Callable[[str], Path | None]) -> dict[str, StoredBlocks]:
    """Return the tensors of the file that a folder was converted from, by the names of their weights.

    `find_file` returns the file with a checksum; without that file, or in a folder of another kind, there are none.
    """
    try:
        record = json.loads((folder / RECORD).read_text())
        table, checksum = record["tensors"], str(record["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    file = find_file(checksum)
    if file is None:
        return {}
    return {
        name: StoredBlocks(file, name, own["offset"], own["type"], tuple(own["shape"]), own["heads"])
        for name, own in table.items()
    }


def blocks_of(parameter: "Tensor") -> StoredBlocks | None:
    """Return where the blocks of a shell's parameter are; None for a parameter that has none."""
    return getattr(parameter, "blocks", None) if parameter.is_meta else None
