"""What a GGUF file holds: its metadata and tensors, those of a file in several parts joined, and what is refused."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import first_line

if TYPE_CHECKING:
    from gguf import GGUFReader

PART = re.compile(r"-(\d{5})-of-(\d{5})$")
"""The end of the names of the parts of a model, without the suffix."""
SPELLINGS = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
"""Architectures that transformers maps under another name than that in the file."""
INSTEAD = "give the original model as a folder or hub id instead"


@dataclass(frozen=True, slots=True)
class Metadata:
    """The parts of a file's metadata that decide whether it can be converted, and how."""

    architecture: str
    tokenizer: str
    text_splitting: str
    """The rule by which text is split before it becomes tokens; empty if the file names none."""
    adds_bos: bool
    """True if a text begins with the beginning-of-sequence token; what a file leaves out is llama.cpp's default."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text, a turn or a message."""
    rope_scaling: dict[str, float | str]
    """What the file says about the scaling of rotary frequencies, by llama.cpp's names, such as `type`."""
    rope_factors: tuple[float, ...]
    """The number by which each rotary frequency is divided; empty without such a tensor."""
    parts: int
    tensors: tuple[str, ...]
    types: dict[str, int]
    """The number of tensors of each type, such as Q4_K."""

    @classmethod
    def of(cls, reader: "GGUFReader") -> "Metadata":
        """Read the metadata of an open file."""
        architecture, tokenizer = _text(reader, "general.architecture"), _text(reader, "tokenizer.ggml.model")
        ends = {_text(reader, f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")} - {""}
        prefix = f"{architecture}.rope.scaling."
        factors = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
        return cls(
            architecture=architecture,
            tokenizer=tokenizer,
            text_splitting=_text(reader, "tokenizer.ggml.pre"),
            adds_bos=(_text(reader, "tokenizer.ggml.add_bos_token") or str(tokenizer == "llama")) == "True",
            end_tokens=tuple(sorted(int(token) for token in ends)),
            rope_scaling={
                name.removeprefix(prefix): field.contents()
                for name, field in reader.fields.items()
                if name.startswith(prefix)
            },
            rope_factors=tuple(float(factor) for factor in factors[0]) if factors else (),
            parts=int(_text(reader, "split.count") or 1),
            tensors=tuple(tensor.name for tensor in reader.tensors),
            types=dict(Counter(tensor.tensor_type.name for tensor in reader.tensors)),
        )


def parts_of(path: Path) -> list[Path]:
    """Return all files of a model in the order of its parts; a missing part is an error of one line."""
    match = PART.search(path.stem)
    if match is None:
        return [path]
    count = int(match[2])
    base = path.stem[: match.start()]
    files = [path.with_name(f"{base}-{part:05}-of-{count:05}{path.suffix}") for part in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    require(not missing, f"'{path.name}' is one of {count} parts of a model, and {', '.join(missing)} is not beside it")
    return files


@contextmanager
def shared_reader(files: Sequence[Path]) -> Iterator["GGUFReader"]:
    """Yield the reader of a model's parts, which transformers is given too whenever it opens a file within the block.

    A reader goes through the whole vocabulary in Python, which takes seconds; transformers would make three more. The
    first part has all metadata, and the tensors of the others are added to its own.
    """
    import gguf

    readers = [_open(file) for file in files]
    reader = readers[0]
    for other in readers[1:]:
        reader.tensors += other.tensors
    own_type = gguf.GGUFReader
    gguf.GGUFReader = lambda *_: reader
    try:
        yield reader
    finally:
        gguf.GGUFReader = own_type


def _open(path: Path) -> "GGUFReader":
    import gguf

    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # the reader lets through whatever damaged bytes lead to
        raise SkitError(f"cannot read '{path.name}' ({first_line(error)}): the file is damaged or cut off") from error


def require_convertible(files: Sequence[Path], metadata: Metadata) -> None:
    """Raise SkitError if a file cannot be converted into what llama.cpp would run."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    name, mapped = files[0].name, set(GGUF_CONFIG_MAPPING) - {"general", "tokenizer"}
    require(
        metadata.parts == len(files),
        f"'{name}' is one of {metadata.parts} parts of a model: name them as in MODEL-00001-of-{metadata.parts:05}.gguf"
        ", or join them with llama-gguf-split --merge FIRST_PART WHOLE.gguf",
    )
    require(
        SPELLINGS.get(metadata.architecture, metadata.architecture) in mapped,
        f"'{name}' has the architecture '{metadata.architecture}', which cannot be converted: {INSTEAD}; known "
        f"architectures: {', '.join(sorted(mapped))}",
    )
    require(bool(metadata.tokenizer), f"'{name}' holds no tokenizer: {INSTEAD}")
    unknown = {tensor for tensor in metadata.tensors if tensor.startswith("rope_factors_")}
    require(not unknown, f"'{name}' scales rotary frequencies by {', '.join(sorted(unknown))}: {INSTEAD}")


def _text(reader: "GGUFReader", key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())
