"""Tensors of a GGUF file as they are stored there: blocks of numbers of a few bits, with scales of
their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import decode

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


class TensorPlace(Struct):
    """The place of a tensor in a GGUF file, its type there, and what `StoredBlocks` says of heads."""

    type: int
    offset: int
    shape: list[int]
    bytes: int
    heads: int


class ConvertedRecord(Struct):
    """What a converted folder says of its GGUF file; empty in a folder of another kind."""

    file: str = ""
    sha256: str | None = None
    tensor_types: dict[str, int] = {}
    dtype: str = ""
    rules: int | None = None
    tensors: dict[str, TensorPlace] = {}


def tensor_table(tensors: Mapping[str, Any], heads: Mapping[str, int]) -> dict[str, TensorPlace]:
    """Return what a converted folder keeps of the places of a file's tensors; `tensors` are those
    of gguf's reader.
    """
    table: dict[str, TensorPlace] = {}
    for name, tensor in tensors.items():
        table[name] = TensorPlace(
            type=int(tensor.tensor_type),
            offset=int(tensor.data_offset),
            shape=[int(size) for size in reversed(tensor.shape)],
            bytes=int(tensor.n_bytes),
            heads=heads.get(name, 0),
        )
    return table


def read_record(folder: Path) -> ConvertedRecord:
    """Return what a converted folder says of its GGUF file; empty in a folder of another kind, or
    an incomplete one.
    """
    try:
        return decode(ConvertedRecord, (folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return ConvertedRecord()


def stored_blocks(folder: Path, find_file: Callable[[str], Path | None]) -> dict[str, StoredBlocks]:
    """Return the tensors of the file that a folder was converted from, by the names of their
    weights.

    `find_file` returns the file with a checksum; without that file, or in a folder of another kind, there are none.
    """
    record = read_record(folder)
    file = find_file(str(record.sha256)) if record.tensors else None
    if file is None:
        return {}
    return {
        name: StoredBlocks(file, name, own.offset, own.type, tuple(own.shape), own.bytes, own.heads)
        for name, own in record.tensors.items()
    }


def blocks_of(parameter: "Tensor") -> StoredBlocks | None:
    """Return where the blocks of a shell's parameter are; None for a parameter that has none."""
    return getattr(parameter, "blocks", None) if parameter.is_meta else None
