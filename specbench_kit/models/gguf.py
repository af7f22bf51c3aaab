"""Reads GGUF files: a file is converted once, to bf16 weights in the user's folder, and loaded from there afterwards.

Dequantised weights are rounded to bf16. llama.cpp multiplies by the quantised blocks themselves, so that its logits
differ by that rounding; plain decoding and every method here use the same converted weights.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.user_data import user_folder

if TYPE_CHECKING:
    from gguf import GGUFReader

SUFFIX = ".gguf"
RECORD = "gguf.json"
"""The file in a converted folder that says which GGUF file it was made from."""
INDEX = "index.json"
"""The file in the user's folder that remembers the content hashes of files by path, size and time of change."""
MAGIC = b"GGUF"


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a path names: the file itself, or the only one in a folder without config.json."""
    path = Path(name).expanduser()
    if path.suffix == SUFFIX:
        require(path.is_file(), f"there is no file '{name}': give a GGUF file, a model folder or a hub id")
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    require(len(files) <= 1, f"the folder '{name}' holds {len(files)} GGUF files: name one of them")
    return files[0] if files else None


def converted_folder(path: Path) -> Path:
    """Return the folder with the converted model of a GGUF file; convert the file if that was not done before."""
    digest = content_hash(path)
    folder = user_folder("models") / f"gguf-{digest[:16]}"
    if not (folder / RECORD).is_file():
        print(f"converting {path.name} to bf16, once for all later runs", file=sys.stderr)
        _convert(path, digest, folder)
    return folder


def gguf_checksum(folder: Path) -> str | None:
    """Return the checksum of the GGUF file that a folder was converted from; None for other folders."""
    try:
        checksum = json.loads((folder / RECORD).read_text())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(checksum)


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The parts of a file's metadata that decide whether it can be converted."""

    architecture: str
    tokenizer: str
    adds_bos: bool
    """True if a text begins with the beginning-of-sequence token; what a file leaves out is llama.cpp's default."""
    parts: int
    types: dict[str, int]
    """The number of tensors of each type, such as Q4_K."""


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, from the index if the file has not changed since it was computed."""
    index_file = user_folder("models") / INDEX
    status = path.stat()
    key, state = str(path.resolve()), [status.st_size, status.st_mtime_ns]
    try:
        index: dict[str, Any] = json.loads(index_file.read_text())
    except (OSError, ValueError):
        index = {}
    entry = index.get(key)
    if isinstance(entry, list) and entry[:2] == state and isinstance(entry[-1], str):
        return entry[-1]
    with path.open("rb") as file:
        require(file.read(len(MAGIC)) == MAGIC, f"'{path.name}' is not a GGUF file: it does not begin with GGUF")
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
    index[key] = [*state, digest]
    _replace(index_file, json.dumps(index, indent=2))
    return digest


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


@contextmanager
def _shared_reader(path: Path) -> Iterator["GGUFReader"]:
    """Yield the reader of a file, which transformers is given too whenever it opens the file within the block.

    A reader goes through the whole vocabulary in Python, which takes seconds; transformers would make three more.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the reader lets through whatever damaged bytes lead to
        raise SkitError(f"cannot read '{path.name}' ({first_line(error)}): the file is damaged or cut off") from error
    own_type = gguf.GGUFReader
    gguf.GGUFReader = lambda *_: reader
    try:
        yield reader
    finally:
        gguf.GGUFReader = own_type


def _read_metadata(reader: "GGUFReader") -> _Metadata:
    from collections import Counter

    tokenizer = _text(reader, "tokenizer.ggml.model")
    return _Metadata(
        _text(reader, "general.architecture"),
        tokenizer,
        (_text(reader, "tokenizer.ggml.add_bos_token") or str(tokenizer == "llama")) == "True",
        int(_text(reader, "split.count") or 1),
        dict(Counter(tensor.tensor_type.name for tensor in reader.tensors)),
    )


def _text(reader: "GGUFReader", key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def _convert(path: Path, digest: str, folder: Path) -> None:
    """Convert a file into `folder`; raise SkitError before anything is written if it cannot be converted."""
    require(find_spec("gguf") is not None, "reading GGUF files needs the package gguf: pip install gguf")
    with _shared_reader(path) as reader:
        metadata = _read_metadata(reader)
        _require_convertible(path, metadata)
        _write_converted(path, digest, folder, metadata)


def _write_converted(path: Path, digest: str, folder: Path, metadata: _Metadata) -> None:
    """Write the converted model next to `folder` and rename it, so that a folder that exists is complete."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        _write_model(path, partial, metadata)
        record = {"file": path.name, "sha256": digest, "tensor_types": metadata.types, "dtype": "bfloat16"}
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        if (folder / RECORD).is_file():  # another process was faster, and may be reading its folder already
            return
        if folder.exists():  # a folder without a record was left behind by an interrupted conversion
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise SkitError(f"cannot keep the converted model in '{folder}': {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_convertible(path: Path, metadata: _Metadata) -> None:
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    architectures = sorted(set(GGUF_CONFIG_MAPPING) - {"general", "tokenizer"})
    require(
        metadata.parts == 1,
        f"'{path.name}' is one of {metadata.parts} parts of a model: join them first with "
        "llama-gguf-split --merge FIRST_PART WHOLE.gguf",
    )
    require(
        metadata.architecture in architectures,
        f"'{path.name}' has the architecture '{metadata.architecture}', which cannot be converted: give the original "
        f"model as a folder or hub id instead; known architectures: {', '.join(architectures)}",
    )
    require(
        bool(metadata.tokenizer),
        f"'{path.name}' holds no tokenizer: give the original model as a folder or hub id instead",
    )


def _write_model(path: Path, folder: Path, metadata: _Metadata) -> None:
    """Load a GGUF file with transformers and write its configuration, tokenizer and bf16 weights."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # the bars of a minute's work
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.bfloat16, trust_remote_code=False
            )
    except Exception as error:  # the loaders let through whatever a file's content leads to
        raise SkitError(f"cannot convert '{path.name}': {first_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    values = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        values.pop(name, None)
    config = type(model.config)(**values)
    weights = dict(model.state_dict())
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    if metadata.adds_bos:
        _add_bos(tokenizer)
    tokenizer.save_pretrained(folder)
    _drop_added_tokens(folder / "tokenizer.json", config.vocab_size)


def _add_bos(tokenizer: Any) -> None:
    """Let a tokenizer put the beginning-of-sequence token first, which transformers does not read from the file."""
    from tokenizers.processors import TemplateProcessing

    bos, bos_id = tokenizer.bos_token, tokenizer.bos_token_id
    if bos_id is None or tokenizer("a")["input_ids"][:1] == [bos_id]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
    )


def _drop_added_tokens(path: Path, vocabulary: int) -> None:
    """Remove tokens that the model does not have: transformers adds a default for one that a file does not name."""
    content = json.loads(path.read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocabulary]
    path.write_text(json.dumps(content, ensure_ascii=False))
