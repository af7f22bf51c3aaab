"""Reads GGUF files: a file is converted once, to bf16 weights in the user's folder, and loaded from there afterwards.

Dequantised weights are rounded to bf16. llama.cpp multiplies by the quantised blocks themselves, so that its logits
differ by that rounding; plain decoding and every method here use the same converted weights.

Also here: converts the weights of a GGUF file one by one, in parts, so that hardly more than the file itself is read
at once.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from hashlib import file_digest, sha256
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.files import replace_file
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.gguf_content import (
    PART,
    PLAIN_ARCHITECTURES,
    Metadata,
    correct_ends,
    correct_rope,
    correct_tokenizer,
    drop_added_tokens,
    parts_of,
    require_all_weights,
    require_convertible,
    shared_reader,
)
from specbench_kit.models.weights.blocks import RECORD, read_record, tensor_table

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader, ReaderTensor

SUFFIX = ".gguf"
INDEX = "index.json"
"""The file in the user's folder that remembers the content hashes of files by path, size and time of change."""
MAGIC = b"GGUF"
WEIGHTS = "model.safetensors"


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a path names: the file itself, or the only one in a folder without config.json.

    A model in several parts counts as one file; the result is its first part.
    """
    path = Path(name).expanduser()
    if path.suffix == SUFFIX:
        require(path.is_file(), f"there is no file '{name}': give a GGUF file, a model folder or a hub id")
        return parts_of(path)[0]
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    models = {model_name(file) for file in files}
    require(len(models) <= 1, f"the folder '{name}' holds {len(models)} GGUF models: name one of their files")
    return parts_of(files[0])[0] if files else None


def model_name(file: Path) -> str:
    """Return the name of a file's model: without the suffix, and without the number of its part."""
    return PART.sub("", file.stem)


def converted_folder(path: Path) -> Path:
    """Return the folder with the converted model of a GGUF file; convert the file if that was not done before."""
    files = parts_of(path)
    digests = [content_hash(file) for file in files]
    digest = digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()
    folder = user_folder("models") / f"gguf-{digest[:16]}"
    if not _is_converted(folder):
        _convert(files, digest, folder)
    return folder


def _is_converted(folder: Path) -> bool:
    """Return whether a folder is complete; what an earlier version left has no table of tensors."""
    return "tensors" in read_record(folder)


def original_file(checksum: str) -> Path | None:
    """Return a GGUF file of this checksum that was converted and has not changed since; None if there is none."""
    for name, entry in _read_index().items():
        path = Path(name)
        if isinstance(entry, list) and entry[-1] == checksum and path.is_file() and entry[:2] == _state(path):
            return path
    return None


def gguf_checksum(folder: Path) -> str | None:
    """Return the checksum of the GGUF file that a folder was converted from; None for other folders."""
    checksum = read_record(folder).get("sha256")
    return None if checksum is None else str(checksum)


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, from the index if the file has not changed since it was computed."""
    index = _read_index()
    key = str(path.resolve())
    state = _state(path)
    entry = index.get(key)
    if isinstance(entry, list) and entry[:2] == state and isinstance(entry[-1], str):
        return entry[-1]
    with path.open("rb") as file:
        require(file.read(len(MAGIC)) == MAGIC, f"'{path.name}' is not a GGUF file: it does not begin with GGUF")
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
    index[key] = [*state, digest]
    replace_file(user_folder("models") / INDEX, json.dumps(index, indent=2).encode())
    return digest


def _read_index() -> dict[str, Any]:
    """Return the index of content hashes; empty without one."""
    try:
        index: dict[str, Any] = json.loads((user_folder("models") / INDEX).read_text())
    except (OSError, ValueError):
        return {}
    return index


def _state(path: Path) -> list[int]:
    """Return what changes whenever a file does."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _convert(files: Sequence[Path], digest: str, folder: Path) -> None:
    """Convert a model into `folder`; raise SkitError before anything is written if it cannot be converted."""
    require(find_spec("gguf") is not None, "reading GGUF files needs the package gguf: pip install gguf")
    with shared_reader(files) as reader:
        metadata = Metadata.of(reader)
        require_convertible(files, metadata)
        print(f"converting {files[0].name} to bf16, once for all later runs", file=sys.stderr)
        _write_converted(files[0], digest, folder, reader, metadata)


def _write_converted(path: Path, digest: str, folder: Path, reader: "GGUFReader", metadata: Metadata) -> None:
    """Write the converted model next to `folder` and rename it, so that a folder that exists is complete."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        tensors = _write_model(path, partial, reader, metadata)
        record = {
            "file": path.name,
            "sha256": digest,
            "tensor_types": metadata.types,
            "dtype": "bfloat16",
            # Offsets of a file in several parts say nothing about its first.
            "tensors": tensors if metadata.parts == 1 else {},
        }
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        if _is_converted(folder):  # another process was faster, and may be reading its folder already
            return
        if folder.exists():  # a folder without a record was left behind by an interrupted conversion
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise SkitError(f"cannot keep the converted model in '{folder}': {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(path: Path, folder: Path, reader: "GGUFReader", metadata: Metadata) -> dict[str, dict[str, object]]:
    """Write the configuration, tokenizer and bf16 weights of a GGUF file, corrected where transformers misreads it.

    Return the places of its tensors; there are none where they do not correspond to the weights.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, "trust_remote_code": False}
    weights_file = folder / WEIGHTS
    with _converting(path):
        tokenizer = AutoTokenizer.from_pretrained(**source)
        if is_plain := metadata.architecture in PLAIN_ARCHITECTURES:
            config = AutoConfig.from_pretrained(**source)
            config.dtype = torch.bfloat16
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
            model.generation_config = GenerationConfig.from_model_config(config)
            missing = []
        else:
            model, report = AutoModelForCausalLM.from_pretrained(
                **source, dtype=torch.bfloat16, output_loading_info=True
            )
            missing = list(report["missing_keys"])
    values = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        values.pop(name, None)
    config = type(model.config)(**values)
    generation = model.generation_config
    weights = dict(model.state_dict())
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    tensors = weights_of(reader) if is_plain else {}
    require_all_weights(path.name, set(weights), set(tensors), missing)
    correct_rope(path.name, config, metadata)
    correct_tokenizer(path.name, tokenizer, metadata)
    correct_ends(generation, metadata)
    if is_plain:
        write_weights(weights_file, tensors, config, metadata.architecture)
    else:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, weights_file, {"format": "pt"})
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    drop_added_tokens(folder / "tokenizer.json", config.vocab_size)
    return tensor_table(tensors, heads_of(tensors, config, metadata.architecture))


@contextmanager
def _converting(path: Path) -> Iterator[None]:
    """Let transformers say nothing, and end in one line if it cannot read the file."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # the bars of a minute's work
            yield
    except Exception as error:  # the loaders let through whatever a file's content leads to
        raise SkitError(f"cannot convert '{path.name}': {first_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)


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
        start = end
        end = end + 2 * prod(shape)
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

    data = tensor.data
    rows = len(tensor.data)
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
