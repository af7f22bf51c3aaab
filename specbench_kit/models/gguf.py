"""Reads GGUF files: a file is converted once, to bf16 weights in the user's folder, and loaded from
there afterwards.

Dequantised weights are rounded to bf16. llama.cpp multiplies by the quantised blocks themselves, so
that its logits differ by that rounding; plain decoding and every method here use the same converted
weights.

Weights are converted one by one, in parts, so that hardly more than the file itself is read at
once. Files in several parts are joined. What transformers does not take from a file is set as
llama.cpp reads it: rope scaling, end tokens, tokenizer.
"""

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from hashlib import file_digest, sha256
from importlib.util import find_spec
from math import log, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.files import replace_file, require_no_pointer
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.typed_json import decode
from specbench_kit.core.user_data import user_folder
from specbench_kit.models.gguf_tokenizer import (
    INSTEAD,
    TokenizerMetadata,
    correct_saved_tokens,
    correct_tokenizer,
)
from specbench_kit.models.weights.blocks import (
    RECORD,
    ConvertedRecord,
    TensorPlace,
    read_record,
    tensor_table,
)

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader, ReaderTensor


PART = re.compile(r"-(\d{5})-of-(\d{5})$")
"""The end of the names of the parts of a model, without the suffix."""
SPELLINGS = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}
"""Architectures that transformers maps under another name than that in the file."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The parts of a file's metadata that decide whether it can be converted, and how."""

    architecture: str
    tokenizer: TokenizerMetadata
    rope_base: float
    """The base of the rotary frequencies; what a file leaves out is llama.cpp's default."""
    rotated: int | None
    """The number of each head's numbers that are rotated; None if the file does not say."""
    rope_scaling: dict[str, float | str]
    """What the file says about the scaling of rotary frequencies, by llama.cpp's names, such as
    `type`.
    """
    rope_factors: tuple[float, ...]
    """The number by which each rotary frequency is divided; empty without such a tensor."""
    parts: int
    tensors: tuple[str, ...]
    types: dict[str, int]
    """The number of tensors of each type, such as Q4_K."""

    @classmethod
    def of(cls, reader: "GGUFReader") -> "Metadata":
        """Read the metadata of an open file."""
        architecture = _text(reader, "general.architecture")
        rope, prefix = f"{architecture}.rope.", f"{architecture}.rope.scaling."
        rotated, old_factor = (
            _text(reader, f"{rope}{name}") for name in ("dimension_count", "scale_linear")
        )
        factors = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
        return cls(
            architecture=architecture,
            tokenizer=TokenizerMetadata.of(reader),
            rope_base=float(_text(reader, f"{rope}freq_base") or 10000),
            rotated=int(rotated) if rotated else None,
            rope_scaling=({"factor": float(old_factor)} if old_factor else {})
            | {
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
    """Return all files of a model in the order of its parts; a missing part is an error of one
    line.
    """
    match = PART.search(path.stem)
    if match is None:
        return [path]
    count = int(match[2])
    base = path.stem[: match.start()]
    files = [
        path.with_name(f"{base}-{part:05}-of-{count:05}{path.suffix}")
        for part in range(1, count + 1)
    ]
    missing = [file.name for file in files if not file.is_file()]
    require(
        not missing,
        f"'{path.name}' is one of {count} parts of a model, and {', '.join(missing)} is not beside it",
    )
    return files


@contextmanager
def shared_reader(files: Sequence[Path]) -> Iterator["GGUFReader"]:
    """Yield the reader of a model's parts, which transformers is given too whenever it opens a file
    within the block.

    A reader goes through the whole vocabulary in Python, which takes seconds; transformers would
    make three more. The first part has all metadata, and the tensors of the others are added to its
    own.
    """
    import gguf

    readers = [open_gguf(file) for file in files]
    reader = readers[0]
    for other in readers[1:]:
        reader.tensors += other.tensors
    own_type = gguf.GGUFReader
    gguf.GGUFReader = lambda *_: reader
    try:
        yield reader
    finally:
        gguf.GGUFReader = own_type


def open_gguf(path: Path) -> "GGUFReader":
    """Open a file; one that cannot be read is an error of one line."""
    import numpy as np
    from gguf import GGUFReader

    class PlainReader(GGUFReader):
        """Goes through a vocabulary in a quarter of the time, since slices of a mapped file are
        plain arrays here.
        """

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    try:
        return PlainReader(path)
    except Exception as error:  # the reader lets through whatever damaged bytes lead to
        raise SkitError(
            f"cannot read '{path.name}' ({first_line(error)}): the file is damaged or cut off"
        ) from error


def require_convertible(files: Sequence[Path], metadata: Metadata) -> None:
    """Raise SkitError if a file cannot be converted into what llama.cpp would run."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    name = files[0].name
    mapped = set(GGUF_CONFIG_MAPPING) - {"general", "tokenizer"}
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
    require(bool(metadata.tokenizer.kind), f"'{name}' holds no tokenizer: {INSTEAD}")
    unknown = {tensor for tensor in metadata.tensors if tensor.startswith("rope_factors_")}
    require(
        not unknown,
        f"'{name}' scales rotary frequencies by {', '.join(sorted(unknown))}: {INSTEAD}",
    )


def _text(reader: "GGUFReader", key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


LLAMA_3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The parameters, beside `factor`, of all published models with Llama 3's scaling; the file holds
its result alone.
"""
PLAIN_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""Architectures whose tensors and weights correspond one to one."""


def require_all_weights(
    name: str, weights: Set[str], tensors: Set[str], missing: list[str]
) -> None:
    """Raise SkitError if transformers filled weights at random, or if the file's tensors are not
    those of the model.

    `tensors` are named like the weights; they are empty for an architecture whose tensors are not the weights.
    """
    missing = missing or sorted(weights - tensors if tensors else ())
    require(
        not missing,
        f"'{name}' lacks tensors: {min(missing, default='')} would be random; {INSTEAD}",
    )
    unknown = tensors - weights
    require(
        not unknown,
        f"'{name}' holds tensors that its architecture lacks in transformers: {', '.join(sorted(unknown))}; {INSTEAD}",
    )


def correct_rope(name: str, config: Any, metadata: Metadata) -> None:
    """Write the base and the scaling of rotary frequencies that the file states into a
    configuration.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        config.rope_parameters = rope = {**rope, "rope_theta": metadata.rope_base}
    scaling = _scaling(name, config, metadata)
    if scaling is None:
        return
    kind = scaling["rope_type"]
    require(
        "rope_theta" in rope,
        f"'{name}' scales rotary frequencies ({kind}) of a kind that is not known: {INSTEAD}",
    )
    if rope.get("rope_type", "default") == "default":
        config.rope_parameters = {**rope, **scaling}
    if metadata.rope_factors:
        _require_factors(name, config, metadata.rope_factors)


YARN_NAMES = {
    "attention_factor": "attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
"""What shapes the scaling `yarn`, by the names of transformers and of llama.cpp."""
SCALING_NAMES = frozenset(
    {"type", "factor", "original_context_length", "finetuned", *YARN_NAMES.values()}
)


def _scaling(name: str, config: Any, metadata: Metadata) -> dict[str, str | float] | None:
    """Return rope parameters in the names of transformers; None without scaling.

    As in llama.cpp, a factor is that of linear scaling where no type is stated, and 0 stands for no
    factor.
    """
    stated = metadata.rope_scaling
    kind = str(stated.get("type", "linear"))
    factor = float(stated.get("factor", 0)) or 1.0
    strength = float(stated.get("attn_factor", 1))
    others = [other for other in stated if other not in SCALING_NAMES]
    require(
        not others,
        f"'{name}' scales rotary frequencies by {', '.join(sorted(others))}, unknown here: {INSTEAD}",
    )
    is_scaled = kind != "none" and factor != 1
    require(
        strength == 1 or (kind == "yarn" and is_scaled),
        f"'{name}' scales attention by {strength:g} beside rotary frequencies of the type '{kind}': {INSTEAD}",
    )
    if metadata.rope_factors and max(metadata.rope_factors) > 1:
        require(
            not is_scaled,
            f"'{name}' scales rotary frequencies twice, by factors and by {factor:g}: {INSTEAD}",
        )
        return {"rope_type": "llama3", "factor": max(metadata.rope_factors), **LLAMA_3}
    if not is_scaled:
        return None
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    require(
        kind == "yarn",
        f"'{name}' scales rotary frequencies by '{kind}', which cannot be converted: {INSTEAD}",
    )
    length = stated.get("original_context_length", config.max_position_embeddings)
    shape = {own: float(stated[theirs]) for own, theirs in YARN_NAMES.items() if theirs in stated}
    if (
        "attention_factor" in shape
    ):  # llama.cpp multiplies it by the factor that transformers takes without one
        shape["attention_factor"] *= 1 + 0.1 * log(factor)
    return {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": int(length),
        **shape,
    }


def require_rotated(name: str, model: Any, rotated: int | None) -> None:
    """Raise SkitError if a model rotates more or fewer numbers of each head than its file says."""
    if rotated is None:
        return
    widths = {2 * len(module.inv_freq) for module in model.modules() if hasattr(module, "inv_freq")}
    require(
        widths <= {rotated},
        f"'{name}' rotates {rotated} numbers of each head, and transformers {max(widths, default=0)}: {INSTEAD}",
    )


def _require_factors(name: str, config: Any, factors: tuple[float, ...]) -> None:
    """Raise SkitError if the scaling of a configuration does not divide the frequencies by the
    file's factors.
    """
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(len(scaled)) / len(scaled)
    plain = config.rope_parameters["rope_theta"] ** -exponents.double()
    require(
        len(factors) == len(scaled)
        and torch.allclose(
            plain / scaled.double(), torch.tensor(factors, dtype=torch.float64), rtol=1e-3
        ),
        f"'{name}' scales rotary frequencies by factors that are not Llama 3's: {INSTEAD}",
    )


def correct_ends(generation: Any, metadata: Metadata) -> None:
    """Let the tokens that end a turn or a message end an answer too, as in llama.cpp."""
    ends = generation.eos_token_id
    own = set(ends) if isinstance(ends, list) else {ends} - {None}
    if all_ends := own | set(metadata.tokenizer.ends):
        generation.eos_token_id = sorted(all_ends)


SUFFIX = ".gguf"
INDEX = "index.json"
"""The file in the user's folder that remembers the content hashes of files by path, size and time
of change.
"""
MAGIC = b"GGUF"
WEIGHTS = "model.safetensors"
RULES_VERSION = 2
"""Changes whenever a file is read otherwise than before, so that folders of earlier versions are
made again.
"""


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a path names: the file itself, or the only one in a folder without
    config.json.

    A model in several parts counts as one file; the result is its first part.
    """
    path = Path(name).expanduser()
    if path.suffix == SUFFIX:
        require(
            path.is_file(),
            f"there is no file '{name}': give a GGUF file, a model folder or a hub id",
        )
        return parts_of(path)[0]
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    models = {model_name(file) for file in files}
    require(
        len(models) <= 1,
        f"the folder '{name}' holds {len(models)} GGUF models: name one of their files",
    )
    return parts_of(files[0])[0] if files else None


def model_name(file: Path) -> str:
    """Return the name of a file's model: without the suffix, and without the number of its part."""
    return PART.sub("", file.stem)


def converted_folder(path: Path) -> Path:
    """Return the folder with the converted model of a GGUF file; convert the file if that was not
    done before.
    """
    files = parts_of(path)
    digests = [content_hash(file) for file in files]
    digest = digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()
    folder = user_folder("models") / f"gguf-{digest[:16]}"
    if not _is_converted(folder):
        _convert(files, digest, folder)
    return folder


def _is_converted(folder: Path) -> bool:
    """Return whether a folder is complete, and was converted by today's rules."""
    return read_record(folder).rules == RULES_VERSION


def original_file(checksum: str) -> Path | None:
    """Return a GGUF file of this checksum that was converted and has not changed since; None if
    there is none.
    """
    for name, entry in _read_index().items():
        path = Path(name)
        if entry and entry[-1] == checksum and path.is_file() and entry[:2] == _state(path):
            return path
    return None


def gguf_checksum(folder: Path) -> str | None:
    """Return the checksum of the GGUF file that a folder was converted from; None for other
    folders.
    """
    return read_record(folder).sha256


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, from the index if the file has not changed since it was
    computed.
    """
    index = _read_index()
    key = str(path.resolve())
    state = _state(path)
    entry = index.get(key)
    if entry and entry[:2] == state and isinstance(entry[-1], str):
        return entry[-1]
    require_no_pointer(path)
    with path.open("rb") as file:
        require(
            file.read(len(MAGIC)) == MAGIC,
            f"'{path.name}' is not a GGUF file: it does not begin with GGUF",
        )
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()
    index[key] = [*state, digest]
    replace_file(user_folder("models") / INDEX, json.dumps(index, indent=2).encode())
    return digest


def _read_index() -> dict[str, list[int | str]]:
    """Return the index of content hashes; empty without one."""
    try:
        return decode(dict[str, list[int | str]], (user_folder("models") / INDEX).read_bytes())
    except (OSError, ValueError):
        return {}


def _state(path: Path) -> list[int]:
    """Return what changes whenever a file does."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _convert(files: Sequence[Path], digest: str, folder: Path) -> None:
    """Convert a model into `folder`; raise SkitError before anything is written if it cannot be
    converted.
    """
    require(
        find_spec("gguf") is not None, "reading GGUF files needs the package gguf: pip install gguf"
    )
    with shared_reader(files) as reader:
        metadata = Metadata.of(reader)
        require_convertible(files, metadata)
        print(f"converting {files[0].name} to bf16, once for all later runs", file=sys.stderr)
        _write_converted(files[0], digest, folder, reader, metadata)


def _write_converted(
    path: Path, digest: str, folder: Path, reader: "GGUFReader", metadata: Metadata
) -> None:
    """Write the converted model next to `folder` and rename it, so that a folder that exists is
    complete.
    """
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        tensors = _write_model(path, partial, reader, metadata)
        record = ConvertedRecord(
            file=path.name,
            sha256=digest,
            tensor_types=metadata.types,
            dtype="bfloat16",
            rules=RULES_VERSION,
            # Offsets of a file in several parts say nothing about its first.
            tensors=tensors if metadata.parts == 1 else {},
        )
        text = json.dumps(to_builtins(record), indent=2) + "\n"
        (partial / RECORD).write_text(text, encoding="utf-8")
        if _is_converted(
            folder
        ):  # another process was faster, and may be reading its folder already
            return
        if (
            folder.exists()
        ):  # a folder without a record was left behind by an interrupted conversion
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise SkitError(
            f"cannot keep the converted model in '{folder}': {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(
    path: Path, folder: Path, reader: "GGUFReader", metadata: Metadata
) -> dict[str, TensorPlace]:
    """Write the configuration, tokenizer and bf16 weights of a GGUF file, corrected where
    transformers misreads it.

    Return the places of its tensors; there are none where they do not correspond to the weights.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = {
        "pretrained_model_name_or_path": path.parent,
        "gguf_file": path.name,
        "trust_remote_code": False,
    }
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
    for name in (
        "quantization_config",
        "_name_or_path",
        "_model_name_or_path",
        "transformers_version",
    ):
        values.pop(name, None)
    config = type(model.config)(**values)
    generation = model.generation_config
    weights = dict(model.state_dict())
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    tensors = weights_of(reader) if is_plain else {}
    require_all_weights(path.name, set(weights), set(tensors), missing)
    correct_rope(path.name, config, metadata)
    require_rotated(path.name, model, metadata.rotated)
    correct_tokenizer(path.name, tokenizer, metadata.tokenizer)
    correct_ends(generation, metadata)
    if is_plain:
        write_weights(weights_file, tensors, config, metadata.architecture)
    else:
        save_file(
            {name: weight.contiguous() for name, weight in weights.items()},
            weights_file,
            {"format": "pt"},
        )
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    correct_saved_tokens(folder / "tokenizer.json", metadata.tokenizer, config.vocab_size)
    return tensor_table(tensors, heads_of(tensors, config, metadata.architecture))


@contextmanager
def _converting(path: Path) -> Iterator[None]:
    """Let transformers say nothing, and end in one line if it cannot read the file."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            redirect_stderr(nowhere),
        ):  # the bars of a minute's work
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
    """Return the name that transformers gives a tensor's weights; None for a tensor that is unknown
    here.
    """
    match = LAYER.fullmatch(tensor)
    if match is None:
        return ENDS.get(tensor)
    module = PARTS.get(match[2])
    return module and f"model.layers.{match[1]}.{module}.{match[3]}"


def weights_of(reader: "GGUFReader") -> dict[str, "ReaderTensor"]:
    """Return the tensors of a file by the names of their weights, those that are unknown by their
    own.
    """
    tensors = [tensor for tensor in reader.tensors if not tensor.name.startswith("rope_")]
    return {weight_name(tensor.name) or tensor.name: tensor for tensor in tensors}


def write_weights(
    path: Path, tensors: Mapping[str, "ReaderTensor"], config: Any, architecture: str
) -> None:
    """Write tensors as bf16 weights in a safetensors file; SkitError if one cannot be
    dequantised.
    """
    import torch

    heads = heads_of(tensors, config, architecture)
    shapes = {name: _shape(tensor) for name, tensor in tensors.items()}
    with path.open("wb") as file:
        file.write(header_of(shapes))
        for name, tensor in tensors.items():
            for part in _dequantised(tensor, heads.get(name, 0)):
                file.write(part.to(torch.bfloat16).view(torch.uint8).numpy().tobytes())


def _shape(tensor: "ReaderTensor") -> list[int]:
    """Return the sizes of a tensor in the order of torch, which is the reverse of the file's."""
    return [int(size) for size in reversed(tensor.shape)]


class WeightPlace(Struct, kw_only=True):
    """The place of a tensor in a safetensors file, as its header has it."""

    dtype: str = "BF16"
    shape: list[int]
    data_offsets: list[int]


def header_of(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return the beginning of a safetensors file of bf16 weights, which follow it in the same
    order.
    """
    header: dict[str, WeightPlace | dict[str, str]] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start = end
        end = end + 2 * prod(shape)
        header[name] = WeightPlace(shape=list(shape), data_offsets=[start, end])
    text = json.dumps(to_builtins(header), separators=(",", ":")).encode()
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
    """Yield the rows of a tensor in float32, the two halves of each head put apart if `heads` is
    not 0.
    """
    import torch
    from gguf import dequantize

    data = tensor.data
    rows = len(tensor.data)
    at_once = rows if heads else ROWS_AT_ONCE
    for first in range(0, rows, at_once):
        try:
            part = torch.from_numpy(
                dequantize(data[first : first + at_once], tensor.tensor_type).copy()
            )
        except Exception as error:  # the package lets through whatever a file's content leads to
            raise SkitError(
                f"cannot convert the tensor {tensor.name}: {first_line(error)}"
            ) from error
        if heads:
            pairs = part.reshape(heads, rows // heads // 2, 2, *part.shape[1:])
            part = pairs.swapaxes(1, 2).reshape(part.shape)
        yield part.contiguous()
