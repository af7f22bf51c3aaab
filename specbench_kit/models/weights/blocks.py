"""Tensors of a GGUF file as they are stored there: blocks of numbers of a few bits, with scales of
their own.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError

if TYPE_CHECKING:  # the names of models need neither
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

RECORD = "gguf.json"
"""The file in a converted folder that says which GGUF file it was made from, and where that file's
tensors are.
"""
FLOAT = 0
"""The number of the type of tensors in 32 bits."""


BLOCKS = {
    2: 32,  # Q4_0
    3: 32,  # Q4_1
    6: 32,  # Q5_0
    7: 32,  # Q5_1
    8: 32,  # Q8_0
    12: 256,  # Q4_K
    13: 256,  # Q5_K
    14: 256,  # Q6_K
}
"""The weights in a block of the types that csrc/blocks.h multiplies, by their numbers in a file."""


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A tensor in a GGUF file. `heads` is not 0 if the two numbers that RoPE rotates together are
    neighbours in it.
    """

    file: Path
    name: str
    offset: int
    type: int
    shape: tuple[int, ...]
    size_bytes: int
    heads: int

    @property
    def is_product(self) -> bool:
        """Return whether it is a matrix whose blocks can be multiplied as they are."""
        return (
            self.type in BLOCKS and len(self.shape) == 2 and self.shape[1] % BLOCKS[self.type] == 0
        )

    def read(self) -> "NDArray[np.uint8]":
        """Return its bytes; their memory is the file's, mapped, until the last reference to it is
        gone.
        """
        import numpy as np

        try:
            return np.memmap(self.file, np.uint8, "r", self.offset, (self.size_bytes,))
        except (OSError, ValueError) as error:
            raise SkitError(
                f"cannot read {self.name} in '{self.file}', which has changed: {error}"
            ) from error

    def numbers(self) -> "NDArray[np.float32]":
        """Return the numbers of a tensor in 32 bits."""
        import numpy as np

        return self.read().view(np.float32).reshape(self.shape)


def tensor_table(
    tensors: Mapping[str, Any], heads: Mapping[str, int]
) -> dict[str, dict[str, object]]:
    """Return what a converted folder keeps of the places of a file's tensors; `tensors` are those
    of gguf's reader.
    """
    table: dict[str, dict[str, object]] = {}
    for name, tensor in tensors.items():
        table[name] = {
            "type": int(tensor.tensor_type),
            "offset": int(tensor.data_offset),
            "shape": [int(size) for size in reversed(tensor.shape)],
            "bytes": int(tensor.n_bytes),
            "heads": heads.get(name, 0),
        }
    return table


def read_record(folder: Path) -> dict[str, Any]:
    """Return what a converted folder says of its GGUF file; empty in a folder of another kind, or
    an incomplete one.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def stored_blocks(folder: Path, find_file: Callable[[str], Path | None]) -> dict[str, StoredBlocks]:
    """Return the tensors of the file that a folder was converted from, by the names of their
    weights.

    `find_file` returns the file with a checksum; without that file, or in a folder of another kind, there are none.
    """
    record = read_record(folder)
    table = record.get("tensors")
    file = find_file(str(record.get("sha256"))) if table else None
    if not table or file is None:
        return {}
    return {
        name: StoredBlocks(
            file, name, own["offset"], own["type"], tuple(own["shape"]), own["bytes"], own["heads"]
        )
        for name, own in table.items()
    }


def blocks_of(parameter: "Tensor") -> StoredBlocks | None:
    """Return where the blocks of a shell's parameter are; None for a parameter that has none."""
    return getattr(parameter, "blocks", None) if parameter.is_meta else None
